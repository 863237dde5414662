// Prometheus text to numbers. Label values may hold anything, so the value is what follows the last brace.

export class Metrics {
  private readonly values = new Map<string, number>()

  constructor(text: string) {
    for (const line of text.split('\n')) {
      const parts = /^([a-zA-Z_:]\w*(?::\w+)*)(?:\{(.*)\})? (\S+)$/.exec(line)
      if (parts) this.add(parts[1]!, parts[2] ?? '', Number(parts[3]))
    }
  }

  /** Over all label sets; of one label's values where `only` is such as `finished_reason="stop"`. */
  sum(name: string, only = ''): number {
    return this.values.get(name + only) ?? 0
  }

  private add(name: string, labels: string, value: number): void {
    for (const key of [name, ...labels.split(/,(?=\w+=")/).map((label) => name + label)]) {
      this.values.set(key, (this.values.get(key) ?? 0) + value)
    }
  }
}
