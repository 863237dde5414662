// One question to /v1/chat/completions or /v1/completions, streamed: what the server says, in order.

import { ApiError, asApiError, errorOf } from './errors'
import { eventData } from './sse'

export interface Message {
  role: 'system' | 'user' | 'assistant'
  content: string
}

/** `prompt` is a conversation, or for a model without a chat template a text to continue. */
export interface Question {
  model: string
  prompt: Message[] | string
  temperature: number
  maxTokens: number | null
}

export interface Usage {
  prompt_tokens: number
  completion_tokens: number
  prompt_tokens_details: { cached_tokens: number }
}

/** `serverMs`: what the server took until its answer began, by its own clock. */
export type Said =
  | { kind: 'begun'; requestId: string | null; serverMs: number | null }
  | { kind: 'text'; text: string }
  | { kind: 'finish'; reason: string }
  | { kind: 'usage'; usage: Usage }

interface Chunk {
  error?: { message: string; code?: string | null }
  choices: { delta?: { content?: string }; text?: string; finish_reason: string | null }[]
  usage?: Usage | null
}

/** Throws ApiError, or what fetch throws: TypeError without a connection, AbortError after the signal. */
export async function* generate(question: Question, signal: AbortSignal): AsyncGenerator<Said> {
  const chat = typeof question.prompt !== 'string'
  const response = await fetch(chat ? 'v1/chat/completions' : 'v1/completions', {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(bodyOf(question)),
    signal,
  })
  if (!response.ok) throw await errorOf(response)
  const requestId = response.headers.get('x-request-id')
  const took = response.headers.get('openai-processing-ms')
  yield { kind: 'begun', requestId, serverMs: took === null ? null : Number(took) }
  for await (const data of eventData(response.body!)) {
    if (data === '[DONE]') return
    const chunk = JSON.parse(data) as Chunk
    if (chunk.error) throw asApiError(chunk.error, null, requestId)
    yield* saidIn(chunk)
  }
  throw new ApiError('The connection ended before the answer was complete.', null, null, requestId)
}

function bodyOf({ model, prompt, temperature, maxTokens }: Question): object {
  const asked = typeof prompt === 'string' ? { prompt } : { messages: prompt }
  const length = maxTokens === null ? {} : { max_tokens: maxTokens }
  return { model, ...asked, temperature, ...length, stream: true, stream_options: { include_usage: true } }
}

function* saidIn(chunk: Chunk): Generator<Said> {
  const choice = chunk.choices[0]
  const text = choice?.delta?.content ?? choice?.text
  if (text) yield { kind: 'text', text }
  if (choice?.finish_reason) yield { kind: 'finish', reason: choice.finish_reason }
  if (chunk.usage) yield { kind: 'usage', usage: chunk.usage }
}
