import { describe, expect, test } from 'vitest';
import { StowageError } from '#core/errors.ts';
import type { Store, StoreKind } from '#core/ports.ts';
import { aCall } from '../core-calls.ts';
import { type GatedVerb, gated } from './gated-store.ts';
import { refusing } from './refusing-store.ts';
import { type AnyVerb, replaceVerbs, type VerbPath } from './wrapped-store.ts';

const scope = aCall();

/** Every verb that can have a gate, with its arguments. */
const calls: { readonly [V in GatedVerb]: readonly unknown[] } = {
  create: [{}, scope],
  get: ['a', scope],
  names: [scope],
  'changedByOthers.revisions': [scope],
  delete: [{}, scope, { onlyIfEmpty: true }],
  'adoption.release': [{}, scope],
  rename: [{}, 'b', scope],
  label: [{}, {}, scope],
  'enforcement.enforce': [{}, scope],
  expand: [{}, 1n, scope],
  source: [{}, scope],
  checkWritable: [{}, scope],
  chownToGroup: [{}, 1, scope],
  markUsed: [{}, scope],
  usage: [{}, scope],
  'trash.put': [{}, {}, scope],
  'trash.list': [scope],
  'trash.restore': ['id', 'a', scope],
  'trash.purge': ['id', scope, { deletedAt: 1 }],
  'trash.listExpired': [1, scope],
  'trash.purgeExpired': ['id', scope],
  'uses.put': [{}, {}, scope],
  'uses.remove': ['id', 'host', scope],
  'uses.list': ['id', scope],
  'uses.takeWriter': [{}, 'host', scope],
  'uses.dropWriter': ['id', 'host', scope],
  check: [scope],
  room: [scope],
  ping: [scope],
  'adoption.adoptable': [scope],
  'adoption.adopt': ['a', {}, scope],
  'adoption.claim': [{}, 'instance', scope],
  'housekeeping.orphans': [scope],
  'housekeeping.sweep': [scope],
  'housekeeping.reclaim': [scope],
};
const verbs = Object.keys(calls) as GatedVerb[];

/** A store whose verbs return their paths. */
function plainKind(): StoreKind {
  const store: Record<string, unknown> = { name: 'silver', access: ['filesystem'], sources: ['nfs'], identity: 'it' };
  for (const path of verbs) {
    const [first = '', second] = path.split('.');
    const verb = async (): Promise<string> => path;
    if (second === undefined) store[first] = verb;
    else store[first] = { ...(store[first] as object | undefined), [second]: verb };
  }
  return { open: async () => store } as unknown as StoreKind;
}

const openIn = async (kind: StoreKind): Promise<Store> =>
  await kind.open({ name: 'silver' } as never, {} as never, {} as never, scope);

async function call(store: Store, path: GatedVerb): Promise<unknown> {
  const verb = path.split('.').reduce<unknown>((at, name) => (at as Record<string, unknown>)[name], store);
  return await (verb as AnyVerb)(...calls[path]);
}

const others = (path: VerbPath): GatedVerb[] => verbs.filter((verb) => verb !== path);

describe('a store with gates', () => {
  test.each(verbs)('holds %s at its gate until it opens, and holds no other verb', async (path) => {
    const kind = gated(plainKind());
    const store = await openIn(kind);
    const gate = kind.close(path);
    const answers: unknown[] = [];
    const answered = call(store, path).then((answer) => answers.push(answer));
    await gate.reached;
    for (const other of others(path)) expect(await call(store, other)).toBe(other);
    expect([gate.waiting(), answers]).toEqual([1, []]);
    gate.open();
    await answered;
    expect(answers).toEqual([path]);
    expect(await call(store, path)).toBe(path);
  });

  test('leaves members alone that are not verbs', async () => {
    const { name, access, sources, identity } = await openIn(gated(plainKind()));
    expect({ name, access, sources, identity }).toEqual({
      name: 'silver',
      access: ['filesystem'],
      sources: ['nfs'],
      identity: 'it',
    });
  });
});

describe('a store that refuses', () => {
  test.each(verbs)('refuses %s until it stops, and refuses no other verb', async (path) => {
    const kind = refusing(plainKind());
    const store = await openIn(kind);
    const error = new StowageError('refused', { code: 'busy', reason: 'store-busy', action: 'None.' });
    const refusal = kind.fail(path, error);
    await expect(call(store, path)).rejects.toBe(error);
    for (const other of others(path)) expect(await call(store, other)).toBe(other);
    expect(refusal.refused()).toBe(1);
    refusal.stop();
    expect(await call(store, path)).toBe(path);
  });
});

describe('a store with some verbs replaced', () => {
  test('uses the replacements, and its own verbs otherwise', async () => {
    const store = replaceVerbs(await openIn(plainKind()), {
      'trash.list': async () => [],
      'housekeeping.sweep': async () => undefined,
    });
    expect([await call(store, 'trash.list'), await call(store, 'housekeeping.sweep')]).toEqual([[], undefined]);
    for (const path of verbs)
      if (path !== 'trash.list' && path !== 'housekeeping.sweep') expect(await call(store, path)).toBe(path);
  });

  test('cannot be made if the store lacks the verb', async () => {
    const { uses: _, ...store } = await openIn(plainKind());
    expect(() => replaceVerbs(store, { 'uses.list': async () => [] })).toThrow('the store has no uses.list');
  });
});
