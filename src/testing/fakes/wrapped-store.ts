import type { Store } from '#core/ports.ts';

type Verb = (...given: never[]) => unknown;

type PathsOf<T> = {
  readonly [K in keyof T & string]-?: NonNullable<T[K]> extends Verb
    ? K
    : NonNullable<T[K]> extends string | readonly unknown[]
      ? never
      : NonNullable<T[K]> extends object
        ? `${K}.${PathsOf<NonNullable<T[K]>>}`
        : never;
}[keyof T & string];

/** A verb of a store, or of one of its facets: `delete`, `trash.list`. */
export type VerbPath = PathsOf<Store>;

type VerbAt<T, P extends string> = P extends `${infer Facet}.${infer Rest}`
  ? Facet extends keyof T
    ? VerbAt<NonNullable<T[Facet]>, Rest>
    : never
  : P extends keyof T
    ? NonNullable<T[P]>
    : never;

export type AnyVerb = (...given: readonly unknown[]) => unknown;

const isFacet = (value: unknown): value is object =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** The store with each verb replaced by the result of `wrap`, including the verbs of facets. */
export function wrapVerbs(store: Store, wrap: (path: VerbPath, verb: AnyVerb) => AnyVerb): Store {
  const wrapped = (value: unknown, path: readonly string[]): unknown => {
    if (typeof value === 'function') return wrap(path.join('.') as VerbPath, value as AnyVerb);
    if (!isFacet(value)) return value;
    return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, wrapped(member, [...path, name])]));
  };
  return wrapped(store, []) as Store;
}

/**
 * The store with these verbs replaced. Throws if the store lacks one of them, because the replacement would never be
 * called.
 */
export function replaceVerbs(store: Store, verbs: { readonly [P in VerbPath]?: VerbAt<Store, P> }): Store {
  const left = new Map<string, unknown>(Object.entries(verbs));
  const replaced = wrapVerbs(store, (path, verb) => {
    const replacement = left.get(path) as AnyVerb | undefined;
    left.delete(path);
    return replacement ?? verb;
  });
  if (left.size > 0) throw new Error(`the store has no ${[...left.keys()].join(', ')}`);
  return replaced;
}
