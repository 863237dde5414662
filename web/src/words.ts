// How numbers are written, and what states are called.

const whole = new Intl.NumberFormat('en')
const UNITS = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB']

export function count(value: number): string {
  return whole.format(Math.round(value))
}

/** A rate: whole from ten on, with one digit below. */
export function rate(value: number): string {
  return value === 0 || value >= 10 ? count(value) : value.toFixed(1)
}

export function percent(share: number): string {
  return `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`
}

export function tokens(value: number): string {
  return value === 1 ? '1 token' : `${count(value)} tokens`
}

export function bytes(value: number): string {
  const power = Math.min(Math.floor(Math.log2(Math.max(value, 1)) / 10), UNITS.length - 1)
  const scaled = value / 1024 ** power
  return `${scaled >= 100 || power === 0 ? Math.round(scaled) : scaled.toFixed(1)} ${UNITS[power]}`
}

export function duration(ms: number): string {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`
}

const STATES: Record<string, string> = {
  ok: 'ready',
  connecting: 'asking the server',
  loading: 'the model is loading',
  restarting: 'the engine is starting again',
  stopped: 'the engine has stopped',
  draining: 'shutting down: nothing new is taken',
  stalled: 'no progress for a while',
  unreachable: 'the server does not answer',
}

export function stateName(status: string): string {
  return STATES[status] ?? status
}

const ENDS: Record<string, string> = {
  stop: 'ended by the model',
  length: 'limit reached',
}

export function endName(reason: string): string {
  return ENDS[reason] ?? reason
}
