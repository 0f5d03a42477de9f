import { appendFileSync } from 'node:fs';
import { relative } from 'node:path';
import { repository } from './component.ts';
import { type ComponentName, component } from './components.ts';

/** One line of the file STOWAGE_SKIPS. The summary of `npm test` uses these lines. */
export interface Skip {
  readonly component: ComponentName;
  readonly why: string;
  readonly command: string;
  /** Relative to the repository; empty if unknown. */
  readonly file: string;
}

const probed = new Map<ComponentName, string | undefined>();

/** Why the component is missing on this machine, or undefined. Probes once per process. */
function missing(name: ComponentName): string | undefined {
  if (!probed.has(name)) probed.set(name, component(name).probe());
  return probed.get(name);
}

/**
 * For `describe.skipIf(lacks('mount', 'xfs'))`: returns true if a component is missing, and records that for the
 * summary. If STOWAGE_REQUIRE is `all` or contains the component, a missing component is an error of the test file
 * instead.
 */
export function lacks(...names: readonly [ComponentName, ...ComponentName[]]): boolean {
  const lacking = names.flatMap((name) => {
    const why = missing(name);
    return why === undefined ? [] : [{ component: name, why, command: component(name).command, file: caller() }];
  });
  for (const skip of lacking) {
    if (isRequired(skip.component))
      throw new Error(`${skip.component} is required: ${skip.why}. Get it: ${skip.command}`);
    record(skip);
  }
  return lacking.length > 0;
}

/** The program in the cache folder that `npm run testbed` built. */
export function toolPath(name: ComponentName): string {
  const { tool } = component(name);
  if (tool === undefined) throw new Error(`${name} is not a tool of the cache folder`);
  return tool();
}

function isRequired(name: ComponentName): boolean {
  const required = (process.env['STOWAGE_REQUIRE'] ?? '').split(',').map((part) => part.trim());
  return required.includes('all') || required.includes(name);
}

function record(skip: Skip): void {
  const file = process.env['STOWAGE_SKIPS'];
  if (file !== undefined && file !== '') appendFileSync(file, `${JSON.stringify(skip)}\n`);
}

function caller(): string {
  const path = /(?:file:\/\/)?(\/[^\s():]+\.test\.ts)/.exec(new Error('where').stack ?? '')?.[1];
  return path === undefined ? '' : relative(repository, path);
}
