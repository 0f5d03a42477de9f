import type { Clock } from '#base/clock.ts';
import type { Log, Scope } from '#base/log.ts';
import { formatSize } from '#base/size.ts';
import { StowageError } from '#core/errors.ts';
import type { CheckStep, Room, StoreCheck } from '#core/model.ts';
import { withoutCheck } from '#core/store-errors.ts';
import type { FileHandle, NfsClient } from '#wire/nfs3/index.ts';
import { type Connect, identityOf, isTlsFailure, type OnStep, type Session } from './connect.ts';
import { explainNfsError } from './failures.ts';
import { errorContextOf } from './open-store-root.ts';
import type { NfsOptions } from './options.ts';
import { createProbe, type ProbeLimits } from './probe.ts';
import type { CheckedDirectory } from './probe-leftovers.ts';

export interface CheckParts {
  readonly options: NfsOptions;
  readonly store: string;
  readonly clock: Clock;
  /** Opens connections for this check alone. The existing ones of an open store do not show whether a new one can be opened. */
  readonly connect: Connect;
  readonly readOnly: boolean;
  /** Removes files of checks that were killed. */
  readonly removeLeftovers: (checked: CheckedDirectory, limits: ProbeLimits, log: Log) => Promise<void>;
}

const pingCount = 5;
/** Timeouts of the whole check and of one call. Short, because a user waits for the check and a healthy server answers quickly. */
const checkTimeoutMs = 8_000;
const callTimeoutMs = 4_000;

/** Checks, step by step, everything that opening the store needs. Stops at the first step that fails. */
export async function checkNfs(requested: CheckParts, scope: Scope): Promise<StoreCheck> {
  const { store, clock } = requested;
  const options = { ...requested.options, timeout: Math.min(requested.options.timeout, callTimeoutMs), connections: 1 };
  const parts = { ...requested, options };
  const steps: CheckStep[] = [];
  let room: Room | undefined;
  using limit = clock.deadline(checkTimeoutMs, scope.signal);
  try {
    room = await runSteps(parts, steps, { ...scope, signal: limit.signal });
  } catch (thrown) {
    scope.signal.throwIfAborted();
    if (!(thrown instanceof StepFailed)) throw thrown;
    const { why, action, reason } = explainNfsError(thrown.cause, errorContextOf(options, store));
    steps.push({ step: thrown.step, ok: false, detail: why, action: withoutCheck(action), reason });
  }
  return { ok: steps.every(({ ok }) => ok), steps, totalBytes: room?.totalBytes, freeBytes: room?.freeBytes };
}

async function runSteps(parts: CheckParts, steps: CheckStep[], { signal, log }: Scope): Promise<Room | undefined> {
  const { options, clock, readOnly } = parts;
  const limits = { signal, deadlineMs: options.timeout };
  const onStep: OnStep = (step, detail) => steps.push({ step, ok: true, detail });
  const runStep = async (name: string, work: () => Promise<string>): Promise<void> => {
    steps.push({ step: name, ok: true, detail: await wrapFailure(() => name, work()) });
  };
  const session = await wrapFailure(
    (cause) => pendingStep(steps, options, cause),
    parts.connect(options, onStep, signal),
  );
  using _closing = closeOnDispose(session);
  const { nfs } = session;
  const root = await wrapFailure(() => 'mount', session.mount(signal));
  let writtenAt: number | undefined;
  if (readOnly) await runStep('read', () => readDirectory(nfs, root, limits));
  else {
    await using probe = createProbe(nfs, root, identityOf(options).uid, limits);
    await runStep('write', probe.write);
    await runStep('fsync', probe.sync);
    await runStep('delete', probe.remove);
    writtenAt = probe.writtenAt;
  }
  await runStep('round-trip', () => measureRoundTrip(nfs, clock, limits));
  let room: Room | undefined;
  await runStep('room', async () => {
    const { totalBytes, availableBytes } = await nfs.fsstat(root, limits);
    if (!readOnly && availableBytes === 0n) throw storeFull(parts.store);
    room = { totalBytes, freeBytes: availableBytes };
    return `${formatSize(room.freeBytes)} free of ${formatSize(room.totalBytes)}`;
  });
  // Last, so that it takes no time from the check itself.
  if (writtenAt !== undefined) await parts.removeLeftovers({ nfs, root, now: writtenAt }, limits, log);
  return room;
}

const closeOnDispose = (session: Session): Disposable => ({ [Symbol.dispose]: () => session.close() });

class StepFailed extends Error {
  readonly step: string;
  constructor(step: string, options: ErrorOptions) {
    super(`${step} failed`, options);
    this.step = step;
  }
}

const wrapFailure = <T>(step: (cause: unknown) => string, work: Promise<T>): Promise<T> =>
  work.catch((cause: unknown) => Promise.reject(new StepFailed(step(cause), { cause })));

/** The first step to a connection that was not reported as done. */
function pendingStep(steps: readonly CheckStep[], { network }: NfsOptions, cause: unknown): string {
  if (network !== undefined && steps.length === 0) return 'network';
  if (!steps.some(({ step }) => step === 'resolve')) return 'resolve';
  return isTlsFailure(cause) ? 'tls' : 'connect';
}

const readDirectory = async (nfs: NfsClient, root: FileHandle, limits: ProbeLimits): Promise<string> =>
  `the directory has mode ${(await nfs.getattr(root, limits)).mode.toString(8)}`;

async function measureRoundTrip(nfs: NfsClient, clock: Clock, limits: ProbeLimits): Promise<string> {
  const times: number[] = [];
  for (let i = 0; i < pingCount; i++) {
    const before = clock.elapsed();
    await nfs.null(limits);
    times.push(clock.elapsed() - before);
  }
  times.sort((a, b) => a - b);
  return `${(times[Math.floor(pingCount / 2)] ?? 0).toFixed(2)} ms, the median of ${pingCount}`;
}

function storeFull(store: string): StowageError {
  return new StowageError(`no space left in store ${store}`, {
    code: 'exhausted',
    reason: 'store-full',
    action: "Delete volumes or files that are no longer needed, or have the server's administrator add space.",
  });
}
