import type { Attributes, Before, Wcc } from '#wire/nfs3/structures.ts';

/** What changes of our own, some of them under way at once, have led to. */
export interface WccChain {
  /** Before all of them. */
  readonly attributes: Attributes | undefined;
  /** Where those that ended have led to, and those that do not follow on it yet. */
  reached: Attributes | undefined;
  readonly ended: Wcc[];
  /** Which of them came last cannot be told: the server must be asked. */
  isTied: boolean;
}

export const isSameContent = (a: Before, b: Before): boolean =>
  a.mtimeNs === b.mtimeNs && a.mtime === b.mtime && a.size === b.size;

export const isUnchanged = (a: Before, b: Before): boolean =>
  a.ctimeNs === b.ctimeNs && a.ctime === b.ctime && isSameContent(a, b);

export const isNewer = (a: Before, b: Before): boolean =>
  a.ctime > b.ctime || (a.ctime === b.ctime && (a.ctimeNs > b.ctimeNs || (a.ctimeNs === b.ctimeNs && a.size > b.size)));

/**
 * Changes of our own that overlapped, each from its before to its after. As long as one follows on the other from what was
 * known, nobody else changed anything in between. A server that does not tell the state before is believed; but its answers
 * may have overtaken each other (nfs-ganesha tells none for a WRITE), so what is older than what was reached leads nowhere.
 * Takes those that follow out of `ended`.
 */
export function followChain(known: WccChain): void {
  const { ended } = known;
  for (;;) {
    const from = known.reached ?? known.attributes;
    const next = ended.findIndex(
      ({ before }) => before === undefined || from === undefined || isUnchanged(before, from),
    );
    if (next < 0) return;
    const [{ before, after } = noWcc] = ended.splice(next, 1);
    if (after === undefined) continue;
    const { reached } = known;
    if (before !== undefined || reached === undefined || isNewer(after, reached)) known.reached = after;
    // Within one tick of the server's clock nobody can tell which came last.
    if (before === undefined && reached !== undefined && isSameTime(after, reached)) known.isTied = true;
  }
}

const noWcc: Wcc = { before: undefined, after: undefined };

const isSameTime = (a: Before, b: Before): boolean => a.ctime === b.ctime && a.ctimeNs === b.ctimeNs;

/** The size in the newest reply, even while other changes are in flight, such as a COMMIT after the last WRITE was answered. */
export const latestSize = ({ attributes, reached, ended }: WccChain): number | undefined =>
  [attributes, reached, ...ended.map(({ after }) => after)]
    .filter((one) => one !== undefined)
    .reduce<Attributes | undefined>((a, b) => (a === undefined || isNewer(b, a) ? b : a), undefined)?.size;

/** While it is written to: also by writes that the server has answered before others that it has not. */
export const sizeOf = ({ attributes, reached, ended }: WccChain): number =>
  Math.max(attributes?.size ?? 0, reached?.size ?? 0, ...ended.map(({ after }) => after?.size ?? 0));
