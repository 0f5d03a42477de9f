import { isDeepStrictEqual } from 'node:util';
import type { NfsClient } from '#wire/nfs3/index.ts';

/** One call as it was made, and what became of it. */
export interface CountStep {
  readonly method: keyof NfsClient;
  readonly args: readonly unknown[];
  /** Undefined: it failed. */
  readonly result: unknown;
}

type Method = (...args: readonly unknown[]) => Promise<unknown>;

/** The same client, which tells of each call when it has been answered. */
export function record(nfs: NfsClient, onStep: (step: CountStep) => void): NfsClient {
  return new Proxy(nfs, {
    get: (client, name) => {
      const method = name as keyof NfsClient;
      return async (...args: readonly unknown[]) => {
        let result: unknown;
        try {
          result = await (client[method] as Method)(...args);
          return result;
        } finally {
          onStep({ method, args, result });
        }
      };
    },
  });
}

/**
 * Makes the same calls again, for another name: where the name was in an argument the other is, and handles that came from
 * an earlier call come from the same one now.
 */
export async function replay(nfs: NfsClient, steps: readonly CountStep[], name: string, other: string): Promise<void> {
  const results: unknown[] = [];
  for (const { method, args, result } of steps) {
    const call = (nfs[method] as Method)(...args.map((value) => changed(value, steps, results, name, other)));
    results.push(result === undefined ? await call.catch(() => undefined) : await call);
  }
}

function changed(
  value: unknown,
  steps: readonly CountStep[],
  results: readonly unknown[],
  name: string,
  other: string,
): unknown {
  if (typeof value === 'string') return value.replace(name, other);
  if (value instanceof Uint8Array) {
    const from = results.findIndex((_, i) => isDeepStrictEqual(handleOf(steps[i]?.result), value));
    return from < 0 ? value : handleOf(results[from]);
  }
  if (value === null || typeof value !== 'object' || Object.getPrototypeOf(value) !== Object.prototype) return value;
  return Object.fromEntries(
    Object.entries(value).map(([key, each]) => [key, changed(each, steps, results, name, other)]),
  );
}

const handleOf = (result: unknown): unknown =>
  typeof result === 'object' && result !== null && 'handle' in result ? result.handle : undefined;
