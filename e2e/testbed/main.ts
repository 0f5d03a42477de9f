import { mkdir } from 'node:fs/promises';
import { cannotInstall, install } from './apt.ts';
import { cacheFolder, type Run } from './component.ts';
import { type ComponentName, component, componentNames } from './components.ts';
import { runner } from './run.ts';

const secondsSince = (since: number): string => `${((performance.now() - since) / 1000).toFixed(1)} s`;
const printComponent = (mark: '✓' | '✗' | '·', name: string, text: string): void =>
  console.log(`${mark} ${name.padEnd(14)} ${text}`);
const missingComponents = (): readonly ComponentName[] =>
  componentNames.filter((name) => component(name).probe() !== undefined);

/** Returns undefined on success, otherwise why nothing could be installed. */
async function installPackages(names: readonly ComponentName[], run: Run): Promise<string | undefined> {
  const wanted = [...new Set(names.flatMap((name) => component(name).packages?.() ?? []))];
  if (wanted.length === 0) return undefined;
  const obstacle = cannotInstall();
  if (obstacle !== undefined)
    return `${obstacle}; it would install: ${wanted.map((name) => name.replace('?', '')).join(' ')}`;
  const since = performance.now();
  console.log(`installing Debian packages: ${wanted.join(' ')}`);
  const packages = await install(wanted, run);
  console.log(`installed ${packages.join(' ')} in ${secondsSince(since)}`);
  return undefined;
}

async function makeComponent(name: ComponentName, run: Run): Promise<void> {
  const { make: build, what } = component(name);
  if (build === undefined) return;
  const since = performance.now();
  console.log(`making ${what}`);
  try {
    await mkdir(cacheFolder(), { recursive: true });
    await build(run);
    console.log(`made ${what} in ${secondsSince(since)}`);
  } catch (error) {
    console.log(`could not make ${what}: ${error instanceof Error ? error.message : String(error)}`);
  }
}

function listComponents(): number {
  const lacking = componentNames.map((name) => {
    const { what, command, probe } = component(name);
    const why = probe();
    printComponent(
      why === undefined ? '✓' : '✗',
      name,
      why === undefined ? what : `${what}: ${why}. Get it: ${command}`,
    );
    return why;
  });
  return lacking.filter((why) => why !== undefined).length;
}

async function provideComponents(signal: AbortSignal): Promise<number> {
  const since = performance.now();
  const run = runner(signal);
  const before = missingComponents();
  let obstacle: string | undefined;
  try {
    obstacle = await installPackages(before, run);
  } catch (error) {
    obstacle = error instanceof Error ? error.message : String(error);
  }
  for (const name of missingComponents()) await makeComponent(name, run);
  const lacking = listComponents();
  if (obstacle !== undefined) console.log(`Debian packages were not installed: ${obstacle}`);
  console.log(
    `test bed ${lacking === 0 ? 'complete' : `lacks ${lacking}`} after ${secondsSince(since)}, cache in ${cacheFolder()}`,
  );
  return lacking === 0 ? 0 : 1;
}

async function main(args: readonly string[]): Promise<number> {
  if (args.includes('--list')) {
    listComponents();
    return 0;
  }
  if (args.length > 0) {
    console.error('usage: npm run testbed [-- --list]');
    return 2;
  }
  const stop = new AbortController();
  for (const name of ['SIGINT', 'SIGTERM'] as const)
    process.once(name, () => stop.abort(new Error(`stopped by ${name}`)));
  return await provideComponents(stop.signal);
}

process.exitCode = await main(process.argv.slice(2));
