import { existsSync, mkdirSync, mkdtempSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { beforeEach, describe, expect, onTestFinished, test } from 'vitest';
import { aCall } from '#testing/core-calls.ts';
import { startCore, type TestCore } from '#testing/start-core.ts';
import type { Source, Volume } from './model.ts';

/** A server whose volume was staged by a newer Stowage. */
let server: TestCore;
let volume: Volume;
let folder: string;
let target: string;
let stage: string;

/** A source of a kind that this Stowage does not know. */
const source = { kind: 'teleport', gate: 'seven' } as unknown as Source;

const restart = async (): Promise<void> => {
  await server.stop();
  server = await startCore({ after: server });
};

beforeEach(async () => {
  const started = await startCore();
  server = started;
  onTestFinished(async () => {
    await started.stop();
    await started[Symbol.asyncDispose]();
  });
  folder = realpathSync(mkdtempSync(join(tmpdir(), 'stowage-targets-')));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  target = join(folder, 'a');
  volume = await server.core.volumes.create(
    { store: 'local', name: 'a', bytes: undefined, access: undefined, labels: {} },
    aCall(),
  );
  const mount = await server.core.mounts.publish(
    volume.id,
    target,
    { readOnly: false, user: { kind: 'pod', name: 'shop/web', node: server.core.node } },
    aCall(),
  );
  const { mounted: _, ...record } = mount;
  const records = server.kept.records.open();
  records.mounts.put({ ...record, source });
  records.close();
  stage = join(server.folder, 'mounts', volume.id);
});

const shown = async (): Promise<readonly string[]> =>
  (await server.kept.mounts.mounter.list(aCall()))
    .map(({ at }) => at)
    .filter((at) => at === stage || at.startsWith(folder));

describe('a mount of a source kind that only a newer Stowage knows', () => {
  test('is listed after a start, and is healthy', async () => {
    await restart();
    expect(await server.core.mountHealth(aCall())).toMatchObject([{ target, source, health: { state: 'ok' } }]);
    expect(await server.core.mounts.isDead(volume.id, aCall())).toBe(false);
    expect(await server.core.mounts.repair(aCall())).toEqual([]);
    await server.core.mounts.renewUses(aCall());
    expect(await shown()).toEqual([stage, target]);
  });

  test('counts as in use, because no client can find its other mounts', async () => {
    expect(await server.core.mounts.mountsOf(source, volume.id, aCall())).toBeUndefined();
  });

  test('is forgotten at a start that finds its target unmounted', async () => {
    await server.stop();
    server.kept.mounts.remove(target);
    server = await startCore({ after: server });
    expect(await server.core.mounts.list(aCall())).toEqual([]);
    expect(existsSync(target)).toBe(false);
  });

  test('keeps its stage when its target is unmounted, until the next start', async () => {
    await server.core.mounts.unpublish(target, volume.id, aCall());
    expect([await shown(), await server.core.mounts.list(aCall())]).toEqual([[stage], []]);
    await restart();
    expect(await shown()).toEqual([]);
  });

  test('is removed with its volume once its target is unmounted', async () => {
    await server.core.mounts.unpublish(target, volume.id, aCall());
    await server.core.deletions.delete(volume.id, undefined, aCall());
    expect(await shown()).toEqual([]);
  });

  test('is unmounted by force', async () => {
    await server.core.mounts.unpublish(target, volume.id, aCall(), { force: true });
    expect([await shown(), await server.core.mounts.list(aCall())]).toEqual([[stage], []]);
  });

  test('shares its staged mount with another mount', async () => {
    const otherTarget = join(folder, 'b');
    mkdirSync(otherTarget);
    const publishOptions = { readOnly: false, user: undefined };
    expect(await server.core.mounts.publish(volume.id, otherTarget, publishOptions, aCall())).toMatchObject({
      source: { kind: 'directory' },
    });
    expect(await shown()).toEqual([stage, target, otherTarget]);
  });
});
