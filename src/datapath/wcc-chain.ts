import type { Attributes, Wcc, WccAttr } from '#wire/nfs3/structures.ts';

/** Combines the results of this client's changes, some of them concurrent. */
export interface WccChain {
  /** Attributes before all these changes. */
  readonly attributes: Attributes | undefined;
  /** The attributes after the last change in the chain, and finished changes that do not connect to it yet. */
  chainEnd: Attributes | undefined;
  readonly unchained: Wcc[];
  /** The order of the changes is unknown: get the attributes from the server. */
  isOrderUnknown: boolean;
}

export const isSameContent = (a: WccAttr, b: WccAttr): boolean =>
  a.mtimeNs === b.mtimeNs && a.mtime === b.mtime && a.size === b.size;

export const isUnchanged = (a: WccAttr, b: WccAttr): boolean =>
  a.ctimeNs === b.ctimeNs && a.ctime === b.ctime && isSameContent(a, b);

export const isNewer = (a: WccAttr, b: WccAttr): boolean =>
  a.ctime > b.ctime || (a.ctime === b.ctime && (a.ctimeNs > b.ctimeNs || (a.ctimeNs === b.ctimeNs && a.size > b.size)));

/**
 * Chains this client's overlapping changes by their before and after attributes. If each one connects to the previous
 * one, no other client changed anything in between. A server that sends no before attributes is believed; but its
 * replies may have overtaken each other (nfs-ganesha sends none for WRITE), so a result older than the end of the chain
 * is ignored. Removes chained changes from `unchained`.
 */
export function followChain(chain: WccChain): void {
  const { unchained } = chain;
  for (;;) {
    const from = chain.chainEnd ?? chain.attributes;
    const next = unchained.findIndex(
      ({ before }) => before === undefined || from === undefined || isUnchanged(before, from),
    );
    if (next < 0) return;
    const [{ before, after } = noWcc] = unchained.splice(next, 1);
    if (after === undefined) continue;
    const { chainEnd } = chain;
    if (before !== undefined || chainEnd === undefined || isNewer(after, chainEnd)) chain.chainEnd = after;
    // Within one tick of the server's clock the order is unknown.
    if (before === undefined && chainEnd !== undefined && isSameTime(after, chainEnd)) chain.isOrderUnknown = true;
  }
}

const noWcc: Wcc = { before: undefined, after: undefined };

const isSameTime = (a: WccAttr, b: WccAttr): boolean => a.ctime === b.ctime && a.ctimeNs === b.ctimeNs;

/**
 * The size in the newest reply, even while other changes are in flight, such as a COMMIT after the last WRITE was
 * answered.
 */
export const latestSize = ({ attributes, chainEnd, unchained }: WccChain): number | undefined =>
  [attributes, chainEnd, ...unchained.map(({ after }) => after)]
    .filter((one) => one !== undefined)
    .reduce<Attributes | undefined>((a, b) => (a === undefined || isNewer(b, a) ? b : a), undefined)?.size;

/** While the file is being written: includes writes answered before earlier ones. */
export const maxSize = ({ attributes, chainEnd, unchained }: WccChain): number =>
  Math.max(attributes?.size ?? 0, chainEnd?.size ?? 0, ...unchained.map(({ after }) => after?.size ?? 0));
