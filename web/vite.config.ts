// How the page is built: into the gateway's package, under names that never change, so that the same sources give the
// same files. The server tells browsers to ask each time whether a file is still current (gateway/page_files.py).
import { svelte } from '@sveltejs/vite-plugin-svelte'
import { defineConfig } from 'vite'

export default defineConfig({
  plugins: [svelte({ configFile: false })],
  base: './',
  build: {
    outDir: '../src/lightwell/gateway/page',
    emptyOutDir: true,
    target: 'es2022',
    modulePreload: false,
    assetsInlineLimit: 0, // the policy allows no data: address
    rolldownOptions: {
      output: { entryFileNames: 'page.js', assetFileNames: 'page[extname]', codeSplitting: false },
    },
  },
  server: { proxy: { '^/(v1/|metrics|health)': 'http://127.0.0.1:8000' } }, // npm run dev: beside make serve
})
