import { code, table } from './markdown.ts';

export interface Metric {
  readonly name: string;
  readonly type: string;
  readonly help: string;
  readonly labels: readonly string[];
}

/** Parses the Prometheus text format. */
export function metricsIn(text: string): readonly Metric[] {
  const metrics = new Map<string, { name: string; type: string; help: string; labels: Set<string> }>();
  for (const line of text.split('\n')) {
    const [, what, name = '', rest = ''] = /^# (HELP|TYPE) (\S+) (.*)$/.exec(line) ?? [];
    if (what === 'HELP') metrics.set(name, { name, type: '', help: rest, labels: new Set() });
    const known = metrics.get(name);
    if (what === 'TYPE' && known !== undefined) known.type = rest;
    const [, sample = '', inside = ''] = /^(\w+)\{(.*)\} /.exec(line) ?? [];
    const of = metrics.get(sample) ?? metrics.get(sample.replace(/_(bucket|sum|count)$/, ''));
    for (const [, label = ''] of inside.matchAll(/(\w+)="/g)) if (label !== 'le') of?.labels.add(label);
  }
  return [...metrics.values()].map((metric) => ({ ...metric, labels: [...metric.labels] }));
}

const rowsOf = (text: string): readonly (readonly string[])[] =>
  metricsIn(text)
    .filter(({ name }) => name.startsWith('stowage_'))
    .map(({ name, type, help, labels }) => [code(name), type, labels.map(code).join(', '), help]);
const columns = ['Metric', 'Type', 'Labels', 'Meaning'] as const;

export function metricPage(text: string, ofController: string): string {
  return [
    '# Metrics',
    '',
    'Served at `/metrics` in the Prometheus text format, on the socket and for any token; a token that is limited to stores sees the figures of these stores only ([how to scrape](../operations.md#metrics)).',
    'There are also the usual `process_*` and `nodejs_*` metrics of the Prometheus client: memory, CPU, event loop,',
    'garbage collection. In a cluster, agents serve the same metrics at the addresses of `--health` and `--metrics`, without a token and with the figures of all stores ([how to scrape them](../kubernetes-install.md#metrics)).',
    '',
    ...table(columns, rowsOf(text)),
    '',
    '## Metrics of the controller',
    '',
    'Served by `stowage controller` at the address of `--health`, without a token. A controller that does not lead serves few of them.',
    '',
    ...table(columns, rowsOf(ofController)),
    '',
  ].join('\n');
}
