import { type ComponentName, component } from '#testbed/components.ts';

/** Throws a clear error before anything is started. */
export function requireComponents(...names: readonly ComponentName[]): void {
  for (const name of names) {
    const { probe, command } = component(name);
    const why = probe();
    if (why !== undefined) throw new Error(`${name} is needed: ${why}. Get it: ${command}`);
  }
}
