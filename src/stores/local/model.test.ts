import { readdir, readFile, writeFile } from 'node:fs/promises';
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { StowageError } from '#core/errors.ts';
import type { Volume, VolumeId, VolumeName } from '#core/model.ts';
import { newVolumeId, volumeName } from '#core/names.ts';
import { scope } from '#testing/contracts/store.ts';
import { type LocalStoreUnderTest, localStore } from '#testing/local-store.ts';
import { keptForAWeek } from '#testing/trash-retention.ts';

interface ModelVolume {
  readonly id: VolumeId;
  readonly labels: Readonly<Record<string, string>>;
  readonly bytes: bigint | undefined;
}

/** What a store should hold, in three maps. */
interface Model {
  readonly volumes: Map<VolumeName, ModelVolume>;
  readonly trash: Map<VolumeId, ModelVolume & { readonly name: VolumeName }>;
  readonly released: Map<VolumeName, ModelVolume>;
}

const names = ['a', 'b', 'c'].map(volumeName);
const anyName = fc.constantFrom(...names);

const steps = fc.oneof(
  fc.record({
    verb: fc.constant('create' as const),
    name: anyName,
    bytes: fc.option(fc.bigInt(0n, 9n), { nil: undefined }),
  }),
  fc.record({
    verb: fc.constantFrom('delete' as const, 'put' as const, 'release' as const, 'adopt' as const),
    name: anyName,
  }),
  fc.record({ verb: fc.constantFrom('rename' as const, 'restore' as const), name: anyName, to: anyName }),
  fc.record({ verb: fc.constant('label' as const), name: anyName, value: fc.string({ maxLength: 5 }) }),
  fc.record({ verb: fc.constant('expand' as const), name: anyName, bytes: fc.bigInt(0n, 9n) }),
  fc.record({ verb: fc.constantFrom('restart' as const, 'reclaim' as const, 'purge' as const) }),
);
type Step = typeof steps extends fc.Arbitrary<infer T> ? T : never;

const isNameTaken = (model: Model, name: VolumeName): boolean => model.volumes.has(name) || model.released.has(name);

/** Applies the step to the store and to the model. The two must agree on whether it is possible. */
async function perform(step: Step, under: LocalStoreUnderTest, model: Model): Promise<void> {
  const { store } = under;
  const ref = (name: VolumeName): { id: VolumeId; name: VolumeName } => ({
    name,
    id: model.volumes.get(name)?.id ?? newVolumeId(),
  });
  const attempt = async <T>(isPossible: boolean, work: Promise<T>): Promise<T | undefined> => {
    const result = await work.then(
      (value) => ({ value }),
      (cause: unknown) => ({ cause }),
    );
    if ('cause' in result && (isPossible || !(result.cause instanceof StowageError))) throw result.cause;
    expect('value' in result).toBe(isPossible);
    return 'value' in result ? result.value : undefined;
  };
  const spec = (name: VolumeName, bytes: bigint | undefined) => ({
    id: newVolumeId(),
    name,
    bytes,
    access: 'filesystem' as const,
    labels: {},
    requestId: newVolumeId(),
    createdAt: 0,
    instance: 'instance-1',
  });
  switch (step.verb) {
    case 'create': {
      const made = await attempt(!isNameTaken(model, step.name), store.create(spec(step.name, step.bytes), scope));
      if (made === undefined) return;
      model.volumes.set(step.name, { id: made.id, labels: {}, bytes: step.bytes });
      // Identifies the volume that the data belong to.
      await writeFile(under.at(step.name, 'id'), made.id);
      return;
    }
    case 'delete':
      await store.delete(ref(step.name), scope);
      model.volumes.delete(step.name);
      return;
    case 'put': {
      const known = model.volumes.get(step.name);
      await store.trash.put(ref(step.name), keptForAWeek(1), scope);
      if (known === undefined) return;
      model.volumes.delete(step.name);
      model.trash.set(known.id, { ...known, name: step.name });
      return;
    }
    case 'release': {
      const known = model.volumes.get(step.name);
      await store.adoption.release(ref(step.name), scope);
      if (known === undefined) return;
      model.volumes.delete(step.name);
      model.released.set(step.name, known);
      return;
    }
    case 'adopt': {
      const known = model.released.get(step.name);
      const back = await attempt(
        known !== undefined,
        store.adoption.adopt(step.name, spec(step.name, undefined), scope),
      );
      if (known === undefined || back === undefined) return;
      expect(back.id).toBe(known.id);
      model.released.delete(step.name);
      model.volumes.set(step.name, known);
      return;
    }
    case 'rename': {
      const known = model.volumes.get(step.name);
      const isFree = step.name === step.to || !isNameTaken(model, step.to);
      await attempt(known !== undefined && isFree, store.rename(ref(step.name), step.to, scope));
      if (known === undefined || !isFree) return;
      model.volumes.delete(step.name);
      model.volumes.set(step.to, known);
      return;
    }
    case 'restore': {
      const found = [...model.trash].find(([, entry]) => entry.name === step.name);
      if (found === undefined) return;
      const [id, { name: _name, ...known }] = found;
      if ((await attempt(!isNameTaken(model, step.to), store.trash.restore(id, step.to, scope))) === undefined) return;
      model.trash.delete(id);
      model.volumes.set(step.to, known);
      return;
    }
    case 'label': {
      const known = model.volumes.get(step.name);
      const labels = { value: step.value };
      await attempt(known !== undefined, store.label(ref(step.name), labels, scope));
      if (known !== undefined) model.volumes.set(step.name, { ...known, labels });
      return;
    }
    case 'expand': {
      const known = model.volumes.get(step.name);
      const isGrowth = known !== undefined && step.bytes >= (known.bytes ?? 0n);
      await attempt(isGrowth, store.expand(ref(step.name), step.bytes, scope));
      if (known !== undefined && isGrowth) model.volumes.set(step.name, { ...known, bytes: step.bytes });
      return;
    }
    case 'restart':
      await (await under.reopen()).housekeeping.sweep(scope);
      return;
    case 'reclaim':
      return store.housekeeping.reclaim(scope);
    case 'purge': {
      const [id] = model.trash.keys();
      if (id === undefined) return;
      await store.trash.purge(id, scope);
      model.trash.delete(id);
      return;
    }
    default:
      step satisfies never;
  }
}

async function compare({ store, root, at }: LocalStoreUnderTest, model: Model): Promise<void> {
  const volumes = await Array.fromAsync(store.list(scope));
  const known = new Map(
    volumes.map(({ name, id, labels, bytes }: Volume) => [name, { id, labels: { ...labels }, bytes }]),
  );
  expect(known).toEqual(model.volumes);
  const trash = (await store.trash.list(scope)).map(({ volume }) => [volume.id, volume.name] as const);
  expect(new Map(trash)).toEqual(new Map([...model.trash].map(([id, { name }]) => [id, name])));
  expect(new Set((await store.adoption.adoptable(scope)).map(({ name }) => name))).toEqual(
    new Set(model.released.keys()),
  );
  for (const [name, { id }] of model.volumes) expect(await readFile(at(name, 'id'), 'utf8')).toBe(id);
  const expected = [...model.volumes.keys(), ...model.released.keys()].concat(
    [...model.volumes.keys()].map((name) => `${name}.meta` as VolumeName),
  );
  expect(new Set(await readdir(root))).toEqual(new Set(['.stowage', ...expected]));
}

test('any sequence of operations leaves the store in the state of a simple model', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(steps, { maxLength: 25, size: 'max' }), async (sequence) => {
      await using under = await localStore();
      const model: Model = { volumes: new Map(), trash: new Map(), released: new Map() };
      for (const step of sequence) await perform(step, under, model);
      await compare(under, model);
    }),
    { numRuns: 60 },
  );
}, 120_000);
