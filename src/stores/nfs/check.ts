import { randomBytes } from 'node:crypto';
import type { Clock } from '#base/clock.ts';
import type { Scope } from '#base/log.ts';
import { StowageError } from '#core/errors.ts';
import type { CheckStep, StoreCheck } from '#core/model.ts';
import { type FileHandle, type NfsClient, stability } from '#wire/nfs3/index.ts';
import type { Connect, OnStep, Session } from './connect.ts';
import { nfsFailure } from './failures.ts';
import type { NfsOptions } from './options.ts';
import { blamedOf } from './place.ts';
import { asSystemError } from './statuses.ts';

export interface CheckParts {
  readonly options: NfsOptions;
  readonly store: string;
  readonly clock: Clock;
  readonly connect: Connect;
  readonly readOnly: boolean;
}

const trips = 5;

/** The whole way to the server and back, step by step, as for a store that is opened now. Ends with the step that fails. */
export async function checkNfs(parts: CheckParts, scope: Scope): Promise<StoreCheck> {
  const { options, clock, readOnly } = parts;
  const steps: CheckStep[] = [];
  let room: { readonly total: bigint; readonly free: bigint } | undefined;
  const within = { signal: scope.signal, deadlineMs: options.timeout };
  const onStep: OnStep = (step, detail) => steps.push({ step, ok: true, detail });

  async function step(name: string, work: () => Promise<string>): Promise<void> {
    try {
      steps.push({ step: name, ok: true, detail: await work() });
    } catch (thrown) {
      throw new Failed(name, { cause: thrown });
    }
  }

  let session: Session | undefined;
  try {
    session = await parts.connect(options, onStep, scope.signal).catch((cause: unknown) => {
      throw new Failed(nextOf(steps, options), { cause });
    });
    const { nfs } = session;
    const root = await session.mount(scope.signal).catch((cause: unknown) => {
      throw new Failed('mount', { cause });
    });
    if (!readOnly) {
      const probe = createProbe(nfs, root, within);
      await step('write', probe.write);
      await step('fsync', probe.sync);
      await step('delete', probe.remove);
    } else
      await step('read', async () => `the directory has mode ${(await nfs.getattr(root, within)).mode.toString(8)}`);
    await step('round-trip', () => roundTrip(nfs, clock, within));
    await step('room', async () => {
      const { totalBytes, availableBytes } = await nfs.fsstat(root, within);
      room = { total: BigInt(totalBytes), free: BigInt(availableBytes) };
      if (!readOnly && room.free === 0n) throw full(parts.store);
      return `${room.free} of ${room.total} bytes are free`;
    });
  } catch (thrown) {
    scope.signal.throwIfAborted();
    if (!(thrown instanceof Failed)) throw thrown;
    const doing = `the step ${thrown.step}`;
    const { message, action } = nfsFailure(asSystemError(thrown.cause), doing, blamedOf(options, parts.store));
    steps.push({ step: thrown.step, ok: false, detail: message, action });
  } finally {
    session?.close();
  }
  return { ok: steps.every(({ ok }) => ok), steps, totalBytes: room?.total, freeBytes: room?.free };
}

class Failed extends Error {
  readonly step: string;
  constructor(step: string, about: ErrorOptions) {
    super(`${step} failed`, about);
    this.step = step;
  }
}

/** The step on the way to a connection that was not reported as done. */
function nextOf(steps: readonly CheckStep[], { tls }: NfsOptions): string {
  if (!steps.some(({ step }) => step === 'resolve')) return 'resolve';
  if (!steps.some(({ step }) => step === 'connect')) return tls === undefined ? 'connect' : 'connect or tls';
  return 'tls';
}

interface Probe {
  write(): Promise<string>;
  sync(): Promise<string>;
  remove(): Promise<string>;
}

function createProbe(
  nfs: NfsClient,
  root: FileHandle,
  within: { readonly signal: AbortSignal; readonly deadlineMs: number },
): Probe {
  // No volume can have this name, and every sweep knows it as ours.
  const name = `.stowage-check-${randomBytes(6).toString('hex')}`;
  const text = Buffer.from('probe\n');
  let file: FileHandle | undefined;
  return {
    write: async () => {
      const made = await nfs.create(root, name, { mode: 'guarded', set: { mode: 0o600 } }, within);
      file = made.handle;
      await nfs.write(file, 0, text, stability.unstable, within);
      const { uid, gid } = await nfs.getattr(file, within);
      return `a file was made, owned by ${uid}:${gid}`;
    },
    sync: async () => {
      if (file !== undefined) await nfs.commit(file, 0, 0, within);
      return 'it was made durable';
    },
    remove: async () => {
      await nfs.remove(root, name, within);
      return 'it was removed';
    },
  };
}

async function roundTrip(
  nfs: NfsClient,
  clock: Clock,
  within: { readonly signal: AbortSignal; readonly deadlineMs: number },
): Promise<string> {
  const times: number[] = [];
  for (let i = 0; i < trips; i++) {
    const before = clock.elapsed();
    await nfs.null(within);
    times.push(clock.elapsed() - before);
  }
  times.sort((a, b) => a - b);
  return `${(times[Math.floor(trips / 2)] ?? 0).toFixed(2)} ms, the median of ${trips}`;
}

function full(store: string): StowageError {
  return new StowageError(`no room is left in store ${store}`, {
    code: 'exhausted',
    reason: 'store-full',
    action: 'Delete volumes or files that are no longer needed, or have the server given more room.',
  });
}
