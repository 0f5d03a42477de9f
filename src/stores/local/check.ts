import { readdir } from 'node:fs/promises';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { formatSize } from '#base/size.ts';
import { StowageError } from '#core/errors.ts';
import type { CheckStep, Room, StoreCheck } from '#core/model.ts';
import type { StoreRoot } from '../file-store/store-root.ts';
import type { VerbContext } from '../file-store/verb-context.ts';
import { storeFailure } from './errors.ts';
import { unlinkIfThere, writeNew } from './files.ts';
import { missingTool } from './mkfs.ts';
import type { LocalOptions } from './options.ts';

/** A failed step reports the problem and an action. Skips steps that depend on a failed one. */
export async function checkStore(
  { storeRoot, clock }: VerbContext,
  options: LocalOptions,
  readOnly: boolean,
  scope: Scope,
): Promise<StoreCheck> {
  using _slot = await storeRoot.callSlots.short.acquire(scope.signal);
  const steps: CheckStep[] = [];
  let room: Room | undefined;

  async function runStep(name: string, work: () => Promise<string>): Promise<boolean> {
    scope.signal.throwIfAborted();
    try {
      steps.push({ step: name, ok: true, detail: await work() });
      return true;
    } catch (cause) {
      const { message, action, reason } = storeFailure(cause, `the step ${name}`, storeRoot.root);
      steps.push({ step: name, ok: false, detail: message, action, reason });
      return false;
    }
  }

  const found = await runStep('resolve', async () => {
    await storeRoot.verify();
    return `${options.root} is ${storeRoot.root}`;
  });
  if (
    found &&
    (await runStep('open', async () => `${(await readdir(storeRoot.root)).length} entries, layout ${options.layout}`))
  ) {
    if (!readOnly) await runStep('writable', () => probeWrite(storeRoot));
    await runStep('room', async () => {
      room = await storeRoot.room();
      if (!readOnly && room.freeBytes === 0n) throw storeFull(storeRoot.root);
      return `${formatSize(room.freeBytes)} free of ${formatSize(room.totalBytes)}`;
    });
    if (options.layout === 'image' && !readOnly) await runStep('tools', () => checkTools(options, clock, scope));
    await runStep('lock', async () =>
      readOnly ? 'none: the store is read-only' : `held by this process (${process.pid})`,
    );
  }
  return { ok: steps.every(({ ok }) => ok), steps, totalBytes: room?.totalBytes, freeBytes: room?.freeBytes };
}

async function probeWrite(storeRoot: StoreRoot): Promise<string> {
  const file = storeRoot.scratchPath();
  await writeNew(file, 'probe');
  await unlinkIfThere(file);
  return 'a file was written, made durable and removed';
}

function storeFull(root: string): StowageError {
  return new StowageError(`no space left on the file system of ${root}`, {
    code: 'exhausted',
    reason: 'store-full',
    action: `Free some space there (df -h ${root}), or delete volumes that are no longer needed.`,
  });
}

async function checkTools({ filesystem }: LocalOptions, clock: Clock, scope: Scope): Promise<string> {
  const needed = filesystem === undefined ? (['xfs', 'ext4'] as const) : [filesystem];
  for (const type of needed) {
    const missing = await missingTool(type, clock, scope);
    if (missing !== undefined) throw missing;
  }
  return `${needed.map((type) => `mkfs.${type}`).join(' and ')} work`;
}
