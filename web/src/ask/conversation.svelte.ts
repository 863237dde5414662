// The conversation and its settings; they stay while other views are looked at, and are gone with the page.

import type { Message } from '../api/generate'
import type { Model } from '../api/server.svelte'
import { Exchange } from './exchange.svelte'

class Conversation {
  exchanges = $state<Exchange[]>([])
  system = $state('')
  temperature = $state(0.7)
  /** Null leaves it to the server. */
  maxTokens = $state<number | null>(256)

  get open(): Exchange | undefined {
    return this.exchanges.find((exchange) => exchange.open)
  }

  async ask(model: Model, text: string): Promise<Exchange> {
    const prompt = model.meta.chat ? this.messages(text) : text
    const exchange = new Exchange(text)
    this.exchanges.push(exchange)
    await exchange.run({ model: model.id, prompt, temperature: this.temperature, maxTokens: this.maxTokens })
    return exchange
  }

  clear(): void {
    this.open?.stop()
    this.exchanges = []
  }

  /** All that was said before, without what failed, then the new question. */
  private messages(text: string): Message[] {
    const system: Message[] = this.system.trim() ? [{ role: 'system', content: this.system }] : []
    const before = this.exchanges.filter((exchange) => exchange.answered)
    const said = before.flatMap((exchange): Message[] => [
      { role: 'user', content: exchange.text },
      { role: 'assistant', content: exchange.answer },
    ])
    return [...system, ...said, { role: 'user', content: text }]
  }
}

export const conversation = new Conversation()
