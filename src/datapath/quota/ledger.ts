import type { Clock } from '#base/clock.ts';
import { eachBounded } from '#base/each-bounded.ts';
import { asJsonObject, type JsonObject, jsonIn } from '#base/json.ts';
import type { LedgerFiles } from './ledger-files.ts';

/**
 * How the nodes of a volume agree on how much each may write. `base` records the usage at the last count; every member
 * (a mount) has a file with its grant beyond that. Invariant: used + all grants <= limit.
 *
 * To get more, a member first writes the higher grant, then reads all grants, and reverts if the sum is too high. Of
 * two concurrent members, at least the one that wrote last sees the other, so they never both succeed wrongly. A grant
 * counts until its epoch ends, even if its member is gone; a new count starts a new epoch without grants. Grants can be
 * negative: deleted space becomes available to others.
 */
export interface Ledger {
  /** The ledger at this member's last refresh. Undefined: not read yet, or nothing was counted yet. */
  readonly view: LedgerView | undefined;
  refresh(): Promise<LedgerView | undefined>;
  /**
   * Raises this member's grant to at least `minGrant`, plus a chunk beyond `currentGrant` if there is room. Returns the
   * new grant; `full`: no room; `over`: another epoch has started.
   */
  raiseGrant(epoch: number, minGrant: number, currentGrant: number): Promise<number | 'full' | 'over'>;
  /** Sets the grant without checking: a lower one, or what is already used. */
  setGrant(epoch: number, granted: number): Promise<void>;
}

export interface LedgerBase {
  readonly epoch: number;
  readonly used: number;
  /** The count of this epoch is in progress: `used` is an upper bound from its start. */
  readonly counting: boolean;
  /** Time of the last count, by the counting node's clock. */
  readonly countedAt: number;
}

export interface LedgerView extends LedgerBase {
  /** Time of the refresh, by `clock.elapsed`. */
  readonly readAt: number;
  readonly limit: number;
  /** The sum of the other members' grants in this epoch. */
  readonly otherGrants: number;
}

export interface LedgerParts {
  readonly files: LedgerFiles;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  readonly member: string;
  /** The volume's size when it was mounted; it may have grown since. */
  readonly limit: number;
  /** Random in 0..1, to desynchronize retries of several members. */
  random?(): number;
}

const maxChunkBytes = 16 * 1024 * 1024;
/** Size of one grant step, and of the idle grant per member: the promised bounds follow from it. */
export const grantChunkBytes = (limit: number): number => Math.min(maxChunkBytes, Math.floor(limit / 64));

const baseName = 'base';
const limitName = 'limit';
export const grantName = (epoch: number, member: string): string => `grant.${epoch}.${member}`;
/** Unique per process, so that leftovers of a dead process do not interfere. */
export const temporaryName = (writer: string): string => `tmp.${writer}`;
/** Undefined: not a grant. */
export function epochOf(name: string): number | undefined {
  const [, epoch] = /^grant\.(\d{1,15})\./.exec(name) ?? [];
  return epoch === undefined ? undefined : Number(epoch);
}

/** Refusals before reporting that the volume is full: other members may be about to revert their grants. */
const maxRefusals = 3;
const maxAttempts = 12;
const retryStepMs = 20;
const maxReadsInFlight = 16;

export function createLedger(parts: LedgerParts): Ledger {
  const { files, clock, signal, member, random = Math.random } = parts;
  let lastView: LedgerView | undefined;

  async function refresh(): Promise<LedgerView | undefined> {
    lastView = await readView(parts);
    return lastView;
  }

  const setGrant: Ledger['setGrant'] = (epoch, granted) =>
    files.write(grantName(epoch, member), `${JSON.stringify({ version: 1, granted })}\n`);

  /** Write first, then check: see above. */
  async function tryGrant(
    epoch: number,
    currentGrant: number,
    wanted: number,
  ): Promise<'granted' | 'too much' | 'over'> {
    await setGrant(epoch, wanted);
    const after = await refresh();
    if (after?.epoch !== epoch) return 'over';
    if (after.used + after.otherGrants + wanted <= after.limit) return 'granted';
    await setGrant(epoch, currentGrant);
    return 'too much';
  }

  return {
    get view() {
      return lastView;
    },
    refresh,
    setGrant,
    raiseGrant: async (epoch, minGrant, currentGrant) => {
      let refusals = 0;
      for (let attempt = 0; attempt < maxAttempts && refusals < maxRefusals; attempt++) {
        const isFirst = attempt === 0 && lastView !== undefined;
        if (!isFirst) await clock.sleep(attempt === 0 ? 0 : random() * retryStepMs * attempt, signal);
        const view = isFirst ? lastView : await refresh();
        if (view?.epoch !== epoch) return 'over';
        const room = view.limit - view.used - view.otherGrants;
        if (room < minGrant) {
          if (!isFirst) refusals++;
          continue;
        }
        const wanted = Math.min(
          room,
          Math.max(minGrant, currentGrant + (attempt < 2 ? grantChunkBytes(view.limit) : 0)),
        );
        const answer = await tryGrant(epoch, currentGrant, wanted);
        if (answer === 'over') return 'over';
        if (answer === 'granted') return wanted;
      }
      return 'full';
    },
  };
}

async function readView({ files, clock, member, limit }: LedgerParts): Promise<LedgerView | undefined> {
  const readAt = clock.elapsed();
  const names = await files.names();
  if (!names.includes(baseName)) return undefined;
  const [base, storedLimit] = await Promise.all([readBase(files), names.includes(limitName) ? readLimit(files) : 0]);
  if (base === undefined) return undefined;
  return {
    ...base,
    readAt,
    limit: Math.max(limit, storedLimit),
    otherGrants: await sumGrants(files, names, base.epoch, member),
  };
}

/** Sum of the grants of an epoch, except for one member. */
export async function sumGrants(
  files: LedgerFiles,
  names: readonly string[],
  epoch: number,
  exceptMember?: string,
): Promise<number> {
  const exceptName = exceptMember === undefined ? undefined : grantName(epoch, exceptMember);
  let sum = 0;
  await eachBounded(
    names.filter((name) => epochOf(name) === epoch && name !== exceptName),
    maxReadsInFlight,
    async (name) => {
      const found = fieldsOf(await files.read(name));
      if (isInteger(found['granted'])) sum += found['granted'];
    },
  );
  return sum;
}

export async function readBase(files: LedgerFiles): Promise<LedgerBase | undefined> {
  const { epoch, used, counting, countedAt } = fieldsOf(await files.read(baseName));
  if (!isCount(epoch) || !isCount(used)) return undefined;
  return { epoch, used, counting: counting === true, countedAt: isCount(countedAt) ? countedAt : 0 };
}

export const writeBase = (files: LedgerFiles, base: LedgerBase): Promise<void> =>
  files.write(baseName, `${JSON.stringify({ version: 1, ...base })}\n`);

async function readLimit(files: LedgerFiles): Promise<number> {
  const { bytes } = fieldsOf(await files.read(limitName));
  return isCount(bytes) ? bytes : 0;
}

/** Ignores foreign content. */
const fieldsOf = (text: string | undefined): JsonObject => asJsonObject(jsonIn(text ?? '')) ?? {};

const isInteger = (value: unknown): value is number => Number.isSafeInteger(value);
const isCount = (value: unknown): value is number => isInteger(value) && value >= 0;
