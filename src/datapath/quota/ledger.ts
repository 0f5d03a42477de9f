import type { Clock } from '#base/clock.ts';
import { eachBounded } from '#base/each-bounded.ts';
import type { LedgerFiles } from './ledger-files.ts';

/**
 * How the nodes of one volume agree on what each may write. `base` says how much was used when the tree was last counted;
 * every member (a mount) has a file with what it has been granted beyond that. The rule: used + all grants <= limit.
 *
 * Who wants more first writes the higher grant, then reads what all have; if that is too much, it takes it back. Of two who do
 * so at the same moment, at least the one that wrote last has seen the other: so both never believe that it is theirs.
 * A grant of an epoch counts until the epoch ends, whatever became of its member; with a new count a new epoch begins, and
 * all grants with it. Grants can be negative: who has deleted gives that to the others.
 */
export interface Ledger {
  /** What it said when this member last looked. Undefined: it has not, or nothing was counted yet. */
  readonly view: View | undefined;
  look(): Promise<View | undefined>;
  /**
   * Makes this member's grant at least `least`, and a chunk more than what it `holds` if there is room. Gives what it is then;
   * or why not: there is no room, or another epoch has begun.
   */
  raise(epoch: number, least: number, holds: number): Promise<number | 'full' | 'over'>;
  /** Without asking: less than it is, or what is spent already. */
  set(epoch: number, granted: number): Promise<void>;
}

export interface Base {
  readonly epoch: number;
  readonly used: number;
  /** The count of this epoch is not done: `used` is what was used at most when it began. */
  readonly counting: boolean;
  /** When it was last done, by the clock of who did it. */
  readonly countedAt: number;
}

export interface View extends Base {
  /** Since when it may have changed, by the clock's elapsed time. */
  readonly at: number;
  readonly limit: number;
  /** What all other members have been granted in this epoch. */
  readonly others: number;
}

export interface LedgerParts {
  readonly files: LedgerFiles;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  readonly member: string;
  /** What the volume was when it was mounted: it can have grown since. */
  readonly limit: number;
  /** From 0 to 1: so that those who ask at the same moment do not ask again at the same moment. */
  random?(): number;
}

const largestChunk = 16 * 1024 * 1024;
/** So much is taken at once, and so much may lie idle with each member: what the bounds that are promised are made of. */
export const chunkOf = (limit: number): number => Math.min(largestChunk, Math.floor(limit / 64));

const baseName = 'base';
const limitName = 'limit';
export const grantName = (epoch: number, member: string): string => `grant.${epoch}.${member}`;
/** Of one process: what another one wrote there, and is dead since, must not come in between. */
export const scratchName = (writer: string): string => `tmp.${writer}`;
/** Undefined: it is no grant. */
export function epochOf(name: string): number | undefined {
  const [, epoch] = /^grant\.(\d{1,15})\./.exec(name) ?? [];
  return epoch === undefined ? undefined : Number(epoch);
}

/** Before it is said that there is no room: what others hold may be about to be taken back. */
const mostRefusals = 3;
const mostAttempts = 12;
const pauseMs = 20;
const readsAtOnce = 16;

export function createLedger(parts: LedgerParts): Ledger {
  const { files, clock, signal, member, random = Math.random } = parts;
  let seen: View | undefined;

  async function look(): Promise<View | undefined> {
    seen = await readView(parts);
    return seen;
  }

  const set: Ledger['set'] = (epoch, granted) =>
    files.write(grantName(epoch, member), `${JSON.stringify({ version: 1, granted })}\n`);

  /** Written first, then looked at: see above. */
  async function claim(epoch: number, holds: number, wanted: number): Promise<'granted' | 'too much' | 'over'> {
    await set(epoch, wanted);
    const after = await look();
    if (after?.epoch !== epoch) return 'over';
    if (after.used + after.others + wanted <= after.limit) return 'granted';
    await set(epoch, holds);
    return 'too much';
  }

  return {
    get view() {
      return seen;
    },
    look,
    set,
    raise: async (epoch, least, holds) => {
      let refusals = 0;
      for (let attempt = 0; attempt < mostAttempts && refusals < mostRefusals; attempt++) {
        const isFirst = attempt === 0 && seen !== undefined;
        if (!isFirst) await clock.sleep(attempt === 0 ? 0 : random() * pauseMs * attempt, signal);
        const view = isFirst ? seen : await look();
        if (view?.epoch !== epoch) return 'over';
        const room = view.limit - view.used - view.others;
        if (room < least) {
          if (!isFirst) refusals++;
          continue;
        }
        const wanted = Math.min(room, Math.max(least, holds + (attempt < 2 ? chunkOf(view.limit) : 0)));
        const answer = await claim(epoch, holds, wanted);
        if (answer === 'over') return 'over';
        if (answer === 'granted') return wanted;
      }
      return 'full';
    },
  };
}

async function readView({ files, clock, member, limit }: LedgerParts): Promise<View | undefined> {
  const at = clock.elapsed();
  const names = await files.names();
  if (!names.includes(baseName)) return undefined;
  const [base, raised] = await Promise.all([readBase(files), names.includes(limitName) ? readLimit(files) : 0]);
  if (base === undefined) return undefined;
  return { ...base, at, limit: Math.max(limit, raised), others: await sumOf(files, names, base.epoch, member) };
}

/** Of all members in an epoch, but one. */
export async function sumOf(
  files: LedgerFiles,
  names: readonly string[],
  epoch: number,
  without?: string,
): Promise<number> {
  const own = without === undefined ? undefined : grantName(epoch, without);
  let sum = 0;
  await eachBounded(
    names.filter((name) => epochOf(name) === epoch && name !== own),
    readsAtOnce,
    async (name) => {
      const found = fieldsOf(await files.read(name));
      if (isWhole(found['granted'])) sum += found['granted'];
    },
  );
  return sum;
}

export async function readBase(files: LedgerFiles): Promise<Base | undefined> {
  const { epoch, used, counting, countedAt } = fieldsOf(await files.read(baseName));
  if (!isCount(epoch) || !isCount(used)) return undefined;
  return { epoch, used, counting: counting === true, countedAt: isCount(countedAt) ? countedAt : 0 };
}

export const writeBase = (files: LedgerFiles, base: Base): Promise<void> =>
  files.write(baseName, `${JSON.stringify({ version: 1, ...base })}\n`);

async function readLimit(files: LedgerFiles): Promise<number> {
  const { bytes } = fieldsOf(await files.read(limitName));
  return isCount(bytes) ? bytes : 0;
}

/** What somebody else may have put there counts for nothing. */
function fieldsOf(text: string | undefined): Readonly<Record<string, unknown>> {
  try {
    const json: unknown = JSON.parse(text ?? '');
    return typeof json === 'object' && json !== null ? (json as Readonly<Record<string, unknown>>) : {};
  } catch {
    return {};
  }
}

const isWhole = (value: unknown): value is number => Number.isSafeInteger(value);
const isCount = (value: unknown): value is number => isWhole(value) && value >= 0;
