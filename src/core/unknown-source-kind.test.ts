import { existsSync, mkdirSync, mkdtempSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { aCall } from '#testing/calls.ts';
import { startCore, type TestCore } from '#testing/start-core.ts';
import type { Source, Volume } from './model.ts';

/** A newer Stowage staged the volume and was then replaced by this one. */
let core: TestCore;
let volume: Volume;
let folder: string;
let target: string;
let stage: string;

/** Of a kind that this Stowage does not know. */
const source = { kind: 'teleport', gate: 'seven' } as unknown as Source;

const restart = async (): Promise<void> => {
  await core.stop();
  core = await startCore({ after: core });
};

beforeEach(async () => {
  const first = await startCore();
  core = first;
  onTestFinished(async () => {
    await core.stop();
    await first[Symbol.asyncDispose]();
  });
  folder = realpathSync(mkdtempSync(join(tmpdir(), 'stowage-targets-')));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  target = join(folder, 'a');
  volume = await core.engine.volumes.create(
    { store: 'local', name: 'a', bytes: undefined, access: undefined, labels: {} },
    aCall(),
  );
  const mount = await core.engine.mounts.publish(
    volume.id,
    target,
    { readOnly: false, user: { kind: 'pod', name: 'shop/web', node: core.engine.node } },
    aCall(),
  );
  const { mounted: _, ...record } = mount;
  const records = core.kept.records.open();
  records.mounts.put({ ...record, source });
  records.close();
  stage = join(core.folder, 'mounts', volume.id);
});

const shown = async (): Promise<readonly string[]> =>
  (await core.kept.mounts.mounter.list(aCall()))
    .map(({ at }) => at)
    .filter((at) => at === stage || at.startsWith(folder));

describe('a mount of a source kind that only a newer Stowage knows', () => {
  test('is found after a start, and is well', async () => {
    await restart();
    expect(await core.engine.mountHealth(aCall())).toMatchObject([{ target, source, health: { state: 'ok' } }]);
    expect(await core.engine.mounts.isDead(volume.id, aCall())).toBe(false);
    expect(await core.engine.mounts.repair(aCall())).toEqual([]);
    await core.engine.mounts.renewUses(aCall());
    expect(await shown()).toEqual([stage, target]);
  });

  test('counts as in use, because no client can find its other mounts', async () => {
    expect(await core.engine.mounts.mountsOf(source, volume.id, aCall())).toBeUndefined();
  });

  test('is forgotten at a start that finds its target unmounted', async () => {
    await core.stop();
    core.kept.mounts.remove(target);
    core = await startCore({ after: core });
    expect(await core.engine.mounts.list(aCall())).toEqual([]);
    expect(existsSync(target)).toBe(false);
  });

  test('keeps its stage when its target is unmounted, until the next start', async () => {
    await core.engine.mounts.unpublish(target, volume.id, aCall());
    expect([await shown(), await core.engine.mounts.list(aCall())]).toEqual([[stage], []]);
    await restart();
    expect(await shown()).toEqual([]);
  });

  test('goes with its volume once its target is unmounted', async () => {
    await core.engine.mounts.unpublish(target, volume.id, aCall());
    await core.engine.deletions.delete(volume.id, undefined, aCall());
    expect(await shown()).toEqual([]);
  });

  test('is unmounted by force', async () => {
    await core.engine.mounts.unpublish(target, volume.id, aCall(), { force: true });
    expect([await shown(), await core.engine.mounts.list(aCall())]).toEqual([[stage], []]);
  });

  test('shares its stage with one more mount', async () => {
    const other = join(folder, 'b');
    mkdirSync(other);
    const how = { readOnly: false, user: undefined };
    expect(await core.engine.mounts.publish(volume.id, other, how, aCall())).toMatchObject({
      source: { kind: 'directory' },
    });
    expect(await shown()).toEqual([stage, target, other]);
  });
});
