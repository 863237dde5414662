// From samples of counters to what is drawn: one point for each second, null where there is nothing to say.

import type { Sample } from '../api/server.svelte'

export interface Point {
  seconds: number
  value: number | null
}

const CACHE_WINDOW_SECONDS = 30

export function levels(samples: Sample[], of: (sample: Sample) => number): Point[] {
  return samples.map((sample) => ({ seconds: sample.seconds, value: of(sample) }))
}

/** How much the counter grew each second since the sample before. */
export function rates(samples: Sample[], of: (sample: Sample) => number): Point[] {
  return samples.slice(1).map((sample, index) => {
    const before = samples[index]!
    return { seconds: sample.seconds, value: (of(sample) - of(before)) / (sample.seconds - before.seconds) }
  })
}

/** Share of the prompt tokens of the last half minute that were found in the prefix cache. */
export function hitRates(samples: Sample[]): Point[] {
  return samples.map((sample) => {
    const before = samples.find(({ seconds }) => seconds >= sample.seconds - CACHE_WINDOW_SECONDS)!
    const lookedUp = sample.lookedUp - before.lookedUp
    return { seconds: sample.seconds, value: lookedUp ? (sample.cached - before.cached) / lookedUp : null }
  })
}
