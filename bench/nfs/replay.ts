import { isDeepStrictEqual } from 'node:util';
import type { NfsClient } from '#wire/nfs3/index.ts';

/** One recorded call with its result. */
export interface CountStep {
  readonly method: keyof NfsClient;
  readonly args: readonly unknown[];
  /** Undefined: the call failed. */
  readonly result: unknown;
}

type Method = (...args: readonly unknown[]) => Promise<unknown>;

/** Wraps the client and reports each call after its answer. */
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
 * Repeats the recorded calls for another name: replaces the name in arguments, and replaces each handle from an earlier call by the
 * handle that the repeated call returned.
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
