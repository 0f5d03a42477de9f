import type { ObjectMeta } from '#wire/kube/types.ts';

/** An object of any kind. */
export interface AnyObject {
  readonly metadata: ObjectMeta;
  readonly [field: string]: unknown;
}

type Json = Readonly<Record<string, unknown>>;

/** The value as a client receives it: without undefined fields. */
export const json = <T>(value: T): T => JSON.parse(JSON.stringify(value)) as T;

const isObject = (value: unknown): value is Json =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** RFC 7386 (JSON merge patch). */
export function merged(before: unknown, patch: unknown): unknown {
  if (!isObject(patch)) return patch;
  const all: Record<string, unknown> = isObject(before) ? { ...before } : {};
  for (const [field, value] of Object.entries(patch)) {
    if (value === null) delete all[field];
    else all[field] = merged(all[field], value);
  }
  return all;
}

/** RFC 6902 (JSON patch): add, replace and remove, for fields of objects. */
export function patched(before: unknown, operations: unknown): unknown {
  const steps = operations as readonly { readonly op: string; readonly path: string; readonly value?: unknown }[];
  return steps.reduce((all, { op, path, value }) => {
    const fields = path.slice(1).split('/');
    const change = fields.reduceRight<unknown>(
      (inner, field) => {
        const name = field.replaceAll('~1', '/').replaceAll('~0', '~');
        return { [name]: inner };
      },
      op === 'remove' ? null : value,
    );
    return merged(all, change);
  }, before);
}
