import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { parseAllDocuments } from 'yaml';
import { lacks, toolPath } from '#testbed/lacks.ts';
import { chart } from './manifests.ts';

interface Agent {
  readonly args: readonly string[];
  readonly ports?: readonly { readonly name: string; readonly containerPort: number }[];
  readonly env: readonly { readonly name: string; readonly valueFrom?: object }[];
  readonly livenessProbe: { readonly httpGet: { readonly host: string; readonly port: number } };
}

interface Kubernetes {
  readonly kind: string;
  readonly metadata: { readonly name: string; readonly labels?: Readonly<Record<string, string>> };
  readonly spec: {
    readonly template: { readonly spec: { readonly containers: readonly [Agent] } };
    readonly selector?: unknown;
    readonly endpoints?: readonly { readonly port: string }[];
    readonly ports?: readonly { readonly name: string; readonly port: number; readonly targetPort: string }[];
    readonly ingress?: readonly { readonly ports: readonly { readonly port: number }[] }[];
  };
}

/** The port that a monitor scrapes, and the pods of that port. */
function scrapedPort({ metadata, spec }: Kubernetes, all: readonly Kubernetes[]): string {
  const { matchLabels } = spec.selector as { readonly matchLabels: Readonly<Record<string, string>> };
  const services = all.filter(
    ({ kind, metadata: { labels } }) =>
      kind === 'Service' && Object.entries(matchLabels).every(([name, value]) => labels?.[name] === value),
  );
  const wanted = spec.endpoints?.map(({ port }) => port);
  return `${metadata.name}: ${services.flatMap(({ spec: { ports, selector } }) =>
    (ports ?? [])
      .filter(({ name }) => wanted?.includes(name))
      .map(
        ({ port, targetPort }) =>
          `${(selector as typeof matchLabels)['app.kubernetes.io/component']} ${targetPort} ${port}`,
      ),
  )}`;
}

describe.skipIf(lacks('helm'))('the metrics port of agents, rendered by Helm,', () => {
  async function rendered(...values: readonly string[]) {
    const words = [
      'template',
      'stowage',
      chart,
      '--kube-version',
      '1.30.0',
      ...values.flatMap((one) => ['--set', one]),
    ];
    const { stdout } = await promisify(execFile)(toolPath('helm'), words, { maxBuffer: 16 * 1024 * 1024 });
    const all = parseAllDocuments(stdout).map((document) => document.toJS() as Kubernetes);
    const agent = all.find(({ kind, metadata }) => `${kind} ${metadata.name}` === 'DaemonSet stowage-agent');
    const container = agent?.spec.template.spec.containers[0] ?? expect.fail('no agent');
    const policy = all.find(({ kind, metadata }) => `${kind} ${metadata.name}` === 'NetworkPolicy stowage-controller');
    return {
      container,
      listens: container.args.filter((word) => /^--(health|metrics|listen)/.test(word)),
      monitors: all.filter(({ kind }) => kind === 'ServiceMonitor').map((monitor) => scrapedPort(monitor, all)),
      openings: policy?.spec.ingress?.flatMap(({ ports }) => ports.map(({ port }) => port)),
    };
  }

  test('listens on loopback only, unless values ask for more', async () => {
    for (const values of [[], ['agent.metrics.enabled=true'], ['monitoring.serviceMonitors=true']]) {
      const { listens, monitors, container, openings } = await rendered(...values);
      expect(listens).toEqual(['--health=127.0.0.1:7879']);
      expect([monitors, container.ports, openings]).toEqual([[], undefined, [8443]]);
    }
  });

  test('listens on the address of the node in the cluster, while probes stay on loopback', async () => {
    const { listens, monitors, container, openings } = await rendered(
      'monitoring.enabled=true',
      'agent.metrics.port=9100',
    );
    expect(listens).toEqual(['--health=127.0.0.1:7879', '--metrics=[$(NODE_ADDRESS)]:9100']);
    expect(container.env.find(({ name }) => name === 'NODE_ADDRESS')?.valueFrom).toEqual({
      fieldRef: { fieldPath: 'status.hostIP' },
    });
    expect(container.ports).toEqual([{ name: 'metrics', containerPort: 9100 }]);
    expect(container.livenessProbe.httpGet).toMatchObject({ host: '127.0.0.1', port: 7879 });
    expect(monitors).toEqual(['stowage-agent: agent metrics 9100', 'stowage-controller: controller health 8081']);
    expect(openings).toEqual([8443, 8081]);
  });

  test('can be scraped by a Prometheus without its operator', async () => {
    const { monitors, container, openings } = await rendered(
      'monitoring.enabled=true',
      'monitoring.serviceMonitors=false',
    );
    expect([monitors, container.ports, openings]).toEqual([
      [],
      [{ name: 'metrics', containerPort: 7879 }],
      [8443, 8081],
    ]);
  });

  test('is absent if disabled, and the controller’s port is still there', async () => {
    const { listens, monitors, container } = await rendered('monitoring.enabled=true', 'agent.metrics.enabled=false');
    expect(listens).toEqual(['--health=127.0.0.1:7879']);
    expect([monitors, container.ports]).toEqual([['stowage-controller: controller health 8081'], undefined]);
  });
});
