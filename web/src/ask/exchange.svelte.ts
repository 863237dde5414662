// One question and its answer as it arrives, with what the server said and what this browser measured.

import { ApiError } from '../api/errors'
import { generate, type Question, type Said, type Usage } from '../api/generate'

export type State = 'waiting' | 'writing' | 'done' | 'stopped' | 'failed'

export class Exchange {
  answer = $state('')
  state = $state<State>('waiting')
  error = $state.raw<ApiError | null>(null)
  finishReason = $state<string | null>(null)
  requestId = $state<string | null>(null)
  serverMs = $state<number | null>(null)
  usage = $state.raw<Usage | null>(null)
  firstMs = $state<number | null>(null)
  lastMs = $state<number | null>(null)
  private readonly sentAt = performance.now()
  private readonly abort = new AbortController()

  constructor(readonly text: string) {}

  get open(): boolean {
    return this.state === 'waiting' || this.state === 'writing'
  }

  /** Whether the next question may build on it. */
  get answered(): boolean {
    return this.state === 'done' || (this.state === 'stopped' && this.answer !== '')
  }

  /** Tokens a second after the first one, as they came in here; null until all are counted, or for fewer than two. */
  get tokensPerSecond(): number | null {
    if (!this.usage || this.firstMs === null || this.lastMs === null) return null
    const seconds = (this.lastMs - this.firstMs) / 1000
    return seconds > 0 && this.usage.completion_tokens > 1 ? (this.usage.completion_tokens - 1) / seconds : null
  }

  stop(): void {
    this.abort.abort()
  }

  async run(question: Question): Promise<void> {
    try {
      for await (const said of generate(question, this.abort.signal)) this.take(said)
      this.state = 'done'
    } catch (error) {
      this.fail(error)
    }
  }

  private take(said: Said): void {
    if (said.kind === 'begun') {
      this.requestId = said.requestId
      this.serverMs = said.serverMs
      this.state = 'writing'
    } else if (said.kind === 'text') {
      this.lastMs = this.elapsed()
      this.firstMs ??= this.lastMs
      this.answer += said.text
    } else if (said.kind === 'finish') {
      this.lastMs = this.elapsed()
      this.finishReason = said.reason
    } else {
      this.usage = said.usage
    }
  }

  private fail(error: unknown): void {
    if (this.abort.signal.aborted) {
      this.state = 'stopped'
      return
    }
    this.error =
      error instanceof ApiError ? error : new ApiError(`The server could not be reached: ${(error as Error).message}.`)
    this.requestId ??= this.error.requestId
    this.state = 'failed'
  }

  private elapsed(): number {
    return performance.now() - this.sentAt
  }
}
