import { cp, mkdir, writeFile } from 'node:fs/promises';
import { basename, join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { component } from '#testbed/components.ts';
import type { Cluster } from '#testbed/kubernetes/cluster.ts';
import { namespace } from '../chart-fixture.ts';
import { components, startConformanceFixture } from './conformance-fixture.ts';
import { type Driver, drivers, runSuite, summaryOf } from './suite.ts';

const usage =
  'usage: npm run e2e:conformance [-- --driver file|local|directories] [--focus REGEXP] [--at-once N] [--minutes N]';

interface Options {
  readonly chosen: readonly Driver[];
  readonly focus: string | undefined;
  readonly parallel: number;
  readonly minutes: number;
}

function parseArguments(args: readonly string[]): Options | undefined {
  const text = { type: 'string' } as const;
  const options = { driver: text, focus: text, 'at-once': text, minutes: text };
  const { values } = parseArgs({ args: [...args], options });
  const chosen = drivers.filter((driver) => values.driver === undefined || values.driver === driver);
  const [parallel, minutes] = [Number(values['at-once'] ?? '4'), Number(values.minutes ?? '60')];
  const isValid = chosen.length > 0 && [parallel, minutes].every((value) => Number.isSafeInteger(value) && value > 0);
  return isValid ? { chosen, focus: values.focus, parallel, minutes } : undefined;
}

async function main(args: readonly string[], signal: AbortSignal): Promise<number> {
  const options = parseArguments(args);
  if (options === undefined) {
    console.error(usage);
    return 2;
  }
  const missing = components.flatMap((name) => {
    const { probe, command } = component(name);
    const why = probe();
    return why === undefined ? [] : [`${name} is needed: ${why}. Get it: ${command}`];
  });
  if (missing.length > 0) {
    console.error(missing.join('\n'));
    return 1;
  }
  const top = resolve('.stowage-conformance');
  await mkdir(top, { recursive: true });
  await using fixture = await startConformanceFixture(signal);
  const { cluster } = fixture;
  const { focus, parallel, minutes } = options;
  let hasFailed = false;
  for (const driver of options.chosen) {
    const folder = join(top, driver);
    const specs = await runSuite({
      driver,
      folder,
      parallel,
      minutes,
      signal,
      kubeconfig: cluster.kubeconfig,
      ...(focus === undefined ? {} : { focus }),
    });
    const lines = summaryOf(driver, specs);
    await writeFile(join(folder, 'summary.txt'), `${lines.join('\n')}\n`);
    await keepLogs(cluster, join(folder, 'cluster'));
    console.log(lines.join('\n'));
    // A run without a passed test proves nothing, so it fails.
    if (!specs.some(({ state }) => state === 'passed') || specs.some(({ state }) => state === 'failed'))
      hasFailed = true;
  }
  console.log(`Logs and reports are in ${top}`);
  return hasFailed ? 1 : 0;
}

/** Copies the logs of Kubernetes and Stowage, which would be deleted with the cluster. */
async function keepLogs({ folder, kubectl }: Cluster, to: string): Promise<void> {
  await cp(join(folder, 'log'), to, { recursive: true });
  const namespaceArgs = ['--namespace', namespace];
  const pods = (await kubectl('get', 'pods', ...namespaceArgs, '--output=name'))
    .split('\n')
    .filter((name) => name !== '');
  for (const pod of pods) await writeFile(join(to, basename(pod)), await kubectl('logs', pod, ...namespaceArgs));
}

const stop = new AbortController();
for (const name of ['SIGINT', 'SIGTERM'] as const)
  process.once(name, () => stop.abort(new Error(`stopped by ${name}`)));
try {
  process.exitCode = await main(process.argv.slice(2), stop.signal);
} catch (thrown) {
  if (!stop.signal.aborted) throw thrown;
  console.error(stop.signal.reason instanceof Error ? stop.signal.reason.message : 'stopped');
  process.exitCode = 1;
}
