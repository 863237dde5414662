// What the page knows of the server: its state and its numbers, asked for each second while the page is in sight.

import { Metrics } from './metrics'

const PERIOD_MS = 1000
const PATIENCE_MS = 5000
export const HISTORY_SECONDS = 120

/** What /v1/models says of the model; the sizes are in bytes. */
export interface Model {
  id: string
  max_model_len: number
  meta: {
    chat: boolean
    weight_bytes: number
    workspace_bytes: number
    kv_bytes: number
    kv_blocks: number
    block_tokens: number
    details: Record<string, string>
  }
}

/** The numbers of one moment; `seconds` on the page's own clock, tokens counted since the server started. */
export interface Sample {
  seconds: number
  running: number
  waiting: number
  kvShare: number
  generated: number
  computed: number
  lookedUp: number
  cached: number
}

class Server {
  /** `ok`, or why it takes no work: the word of /health, or one of our own for a server that does not answer. */
  status = $state<string>('connecting')
  model = $state.raw<Model | null>(null)
  samples = $state.raw<Sample[]>([])
  metrics = $state.raw(new Metrics(''))

  async follow(): Promise<never> {
    for (;;) {
      if (!document.hidden) await this.ask()
      await new Promise((resolve) => setTimeout(resolve, PERIOD_MS))
    }
  }

  private async ask(): Promise<void> {
    try {
      const { status } = (await (await get('health')).json()) as { status: string }
      if (status === 'ok' && this.status !== 'ok') this.model = await served()
      this.metrics = new Metrics(await (await get('metrics')).text())
      this.remember(sampleOf(this.metrics))
      this.status = status
    } catch {
      this.status = 'unreachable'
    }
  }

  private remember(sample: Sample): void {
    const last = this.samples.at(-1)
    const restarted = last !== undefined && sample.generated < last.generated
    const recent = this.samples.filter(({ seconds }) => seconds > sample.seconds - HISTORY_SECONDS)
    this.samples = restarted ? [sample] : [...recent, sample]
  }
}

function sampleOf(metrics: Metrics): Sample {
  return {
    seconds: performance.now() / 1000,
    running: metrics.sum('lightwell_requests_running'),
    waiting: metrics.sum('lightwell_requests_waiting'),
    kvShare: metrics.sum('lightwell_kv_usage_ratio'),
    generated: metrics.sum('lightwell_generation_tokens_total'),
    computed: metrics.sum('lightwell_step_tokens_sum'),
    lookedUp: metrics.sum('lightwell_prefix_cache_queried_tokens_total'),
    cached: metrics.sum('lightwell_prefix_cache_hit_tokens_total'),
  }
}

async function served(): Promise<Model> {
  const list = (await (await get('v1/models')).json()) as { data: Model[] }
  return list.data[0]!
}

function get(path: string): Promise<Response> {
  return fetch(path, { signal: AbortSignal.timeout(PATIENCE_MS) })
}

export const server = new Server()
