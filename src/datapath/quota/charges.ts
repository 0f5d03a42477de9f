import type { Request } from '#wire/fuse/operations.ts';
import { type Attributes, fileType } from '#wire/nfs3/structures.ts';
import type { AttributeCache } from '../attribute-cache.ts';
import type { RequestWait } from '../request-wait.ts';
import { unlessAborted } from '../unless-aborted.ts';
import type { Quota } from './quota.ts';

/**
 * What the requests of a mount cost. By what is known of a file when it is written to: a file without holes takes more room only
 * beyond its end; one with holes at most as much as is written, and never more than its holes. What this gets wrong, for
 * example where the server compresses, the next count puts right.
 */
export interface Charges {
  /** Before a write. Undefined: it takes no more room; else it resolves when there is enough, or rejects with EDQUOT. */
  write(id: number, offset: number, length: number, request: Request): Promise<void> | undefined;
  /** What a predecessor was answered for, and had asked for. */
  restored(place: number, length: number): void;
  /** The write that came at this place is on the server's disk, or lost: until then no count has to have seen it. */
  written(place: number): void;
  /** Its write failed, or was not waited for until there was room. What it asked for counts, and its place may become another's. */
  givenUp(request: Request): void;
  /** Before it is cut, or loses a name: what there is of it. Undefined: not known, so nothing will be free. */
  leaving(id: number | undefined, request: Request): Promise<Leaving | undefined> | undefined;
  /** It was cut, or made longer, from one to the other. */
  resized(id: number, before: Leaving | undefined, after: Attributes | undefined): void;
  /** Of what has lost a name: if that was its last, its room is free. */
  removed(id: number | undefined, before: Leaving | undefined): void;
  forget(id: number): void;
}

export interface Leaving {
  /** What the server says of it now. */
  readonly attributes: Attributes;
  /** Of the ledger. If a count comes in between, it may have seen already that the room is free. */
  readonly epoch: number;
}

export interface ChargesParts {
  readonly quota: Pick<Quota, 'admit' | 'adopt' | 'changed' | 'epoch' | 'freeing'>;
  readonly attributes: Pick<AttributeCache, 'last' | 'epoch' | 'ageMs'>;
  /** Asks the server, when it has answered all that was written. */
  readonly look: (id: number, request: Request) => Promise<Attributes>;
  readonly waitFor: RequestWait;
}

/** What was charged for a file since it was first written to, or since somebody else has changed it. */
interface Charged {
  readonly id: number;
  /** Of its attributes: another, when somebody else has changed it. */
  readonly content: number;
  /** Of the ledger. What was charged in one that is over was counted since. */
  ledger: number | undefined;
  /** What it took on the server before. */
  readonly used: number;
  /** Bytes, not how far they reach: between them there may be holes. */
  bytes: number;
  /** How far they reach. Says nothing about what is free when it goes. */
  end: number;
  /** Of `bytes`, what the server does not have on its disk. */
  underWay: number;
}

const block = 4096;
const roundUp = (bytes: number): number => Math.ceil(bytes / block) * block;
/** What is said to be free must be, also where other nodes write. */
const freshMs = 1_000;
const nothing: Pick<Attributes, 'size' | 'used'> = { size: 0, used: 0 };

export function createCharges({ quota, attributes, look, waitFor }: ChargesParts): Charges {
  const files = new Map<number, Charged>();
  const underWay = new Map<number, { bytes: number; readonly file?: Charged }>();
  const gone = new WeakSet<Request>();

  const isOurs = ({ id, content }: Charged): boolean => content === attributes.epoch(id);
  const isOfThisEpoch = ({ ledger }: Charged): boolean => ledger === undefined || ledger === quota.epoch();
  const isCharged = (file: Charged): boolean => isOurs(file) && file.ledger === quota.epoch();

  function fileOf(id: number): Charged {
    const found = files.get(id);
    if (found !== undefined && isOurs(found) && isOfThisEpoch(found)) return found;
    const { used } = attributes.last(id) ?? nothing;
    const content = attributes.epoch(id);
    const end = found?.content === content ? found.end : 0;
    const made: Charged = { ...{ id, content, used }, ledger: undefined, bytes: 0, end, underWay: 0 };
    files.set(id, made);
    return made;
  }

  function charge(id: number, offset: number, length: number, request: Request): Promise<void> | undefined {
    const file = fileOf(id);
    const bytes = costOf(file, attributes.last(id) ?? nothing, offset, length);
    if (bytes === 0) return undefined;
    const [before, end] = [file.end, Math.max(file.end, roundUp(offset + length))];
    // At once: whoever writes there meanwhile is not to be charged for it again.
    file.end = end;
    file.bytes += bytes;
    return quota.admit(bytes).then(
      () => {
        file.ledger ??= quota.epoch();
        if (gone.has(request)) return quota.changed(bytes, bytes);
        const { place } = request;
        file.underWay += bytes;
        underWay.set(place, { bytes: bytes + (underWay.get(place)?.bytes ?? 0), file });
      },
      (cause: unknown) => {
        file.bytes -= bytes;
        if (file.end === end) file.end = before;
        throw cause;
      },
    );
  }

  /** File systems take more than is written, some much more. */
  function takeMore(file: Charged): void {
    if (files.get(file.id) !== file || !isCharged(file)) return;
    const more = (attributes.last(file.id)?.used ?? 0) - file.used - file.bytes;
    if (more <= 0) return;
    file.bytes += more;
    quota.changed(more);
  }

  /** What goes with it: what was charged for it, if that is known; else what the server says that it takes. */
  function tookOf(id: number, { size, used }: Attributes): number {
    const file = files.get(id);
    if (file === undefined || !isCharged(file)) return used;
    return Math.min(file.used + file.bytes, Math.max(used, roundUp(size)));
  }

  async function leaving(id: number, request: Request): Promise<Leaving | undefined> {
    const epoch = await waitFor(request, (signal) => unlessAborted(quota.freeing(), signal));
    const known = attributes.ageMs(id) <= freshMs ? attributes.last(id) : undefined;
    return epoch === undefined ? undefined : { attributes: known ?? (await look(id, request)), epoch };
  }

  function written(place: number): void {
    const done = underWay.get(place);
    if (done === undefined) return;
    underWay.delete(place);
    quota.changed(done.bytes, done.bytes);
    if (done.file === undefined) return;
    done.file.underWay -= done.bytes;
    if (done.file.underWay === 0) takeMore(done.file);
  }

  function free(bytes: number, epoch: number): void {
    if (bytes > 0 && epoch === quota.epoch()) quota.changed(-bytes);
  }

  return {
    write: (id, offset, length, request) => {
      if (attributes.last(id) !== undefined) return charge(id, offset, length, request);
      // As after a crash of the process before this one: all of it may lie over what is there.
      return look(id, request).then(() => charge(id, offset, length, request));
    },
    restored: (place, bytes) => {
      quota.adopt(bytes);
      underWay.set(place, { bytes });
    },
    written,
    givenUp: (request) => {
      gone.add(request);
      written(request.place);
    },
    leaving: (id, request) => (id === undefined ? undefined : leaving(id, request).catch(() => undefined)),
    resized: (id, before, after) => {
      // Where one of them is not known it may have been cut: then what was charged for it says nothing of it any more.
      if (before === undefined || after === undefined) return void files.delete(id);
      if (after.size >= before.attributes.size) return;
      const took = tookOf(id, before.attributes);
      files.delete(id);
      // What lies before the new end stays, also where the server says later how much that is.
      free(Math.min(took - after.used, roundUp(before.attributes.size) - roundUp(after.size)), before.epoch);
    },
    removed: (id, before) => {
      if (id === undefined) return;
      if (before === undefined) return void files.delete(id);
      // What else has a name was not charged for.
      if (before.attributes.type !== fileType.regular || before.attributes.links > 1) return;
      const took = tookOf(id, before.attributes);
      files.delete(id);
      free(took, before.epoch);
    },
    forget: (id) => void files.delete(id),
  };
}

function costOf(file: Charged, now: Pick<Attributes, 'size' | 'used'>, offset: number, length: number): number {
  const [first, last] = [offset - (offset % block), roundUp(offset + length)];
  const end = Math.max(roundUp(now.size), file.end);
  const beyond = Math.max(0, last - Math.max(end, first));
  const within = Math.max(0, Math.min(end, last) - first);
  const holes = Math.max(0, end - Math.max(now.used, file.used + file.bytes));
  return beyond + Math.min(holes, within);
}

/** Of a mount whose volume's size is not enforced. */
export const noCharges: Charges = {
  write: () => undefined,
  restored: () => undefined,
  written: () => undefined,
  givenUp: () => undefined,
  leaving: () => undefined,
  resized: () => undefined,
  removed: () => undefined,
  forget: () => undefined,
};
