// Server-sent events out of a response's body: the data of each, as it arrives.

export async function* eventData(body: ReadableStream<Uint8Array<ArrayBuffer>>): AsyncGenerator<string> {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader()
  let held = ''
  for (;;) {
    const { done, value } = await reader.read()
    if (done) return
    const events = (held + value).split('\n\n')
    held = events.pop()!
    for (const event of events) yield event.replace(/^data: /, '')
  }
}
