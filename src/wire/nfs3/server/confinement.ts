import type { Caller } from '../../rpc/server.ts';
import { maxDepth } from './exported-tree.ts';
import type { Node } from './nodes.ts';
import { refuse } from './refusal.ts';

/**
 * The control directory of a store. A data path keeps the quota ledger of its volume in `.stowage/quota/<volume id>`, and needs
 * nothing else there.
 */
const controlDirectory = '.stowage';
const ledgerDirectory = 'quota';

/** Decides by the common name of the certificate. If any caller is confined, a caller whose certificate has no name is, too. */
export function createIsConfined(names: readonly string[]): (caller: Caller) => boolean {
  if (names.length === 0) return () => false;
  return ({ certificate }) => certificate === undefined || names.includes(certificate);
}

/**
 * A confined caller may use the directories whose handles it was given, and everything below them. Handles cannot be forged, so
 * it is enough to block the ways to other directories: the exported directory itself, which leads to every volume, and the
 * control directory. LOOKUP, READDIRPLUS and MNT give such a caller no handles of parent directories.
 */
export function requireReachable(node: Node, root: Node): void {
  let [first, second, third]: (string | undefined)[] = [];
  let ancestor: Node | undefined = node;
  for (let depth = 0; ancestor !== undefined && ancestor !== root; ancestor = ancestor.parent) {
    if (depth++ > maxDepth) refuse('ACCES');
    [first, second, third] = [ancestor.name, first, second];
  }
  // The location is not known yet, as after a restart. The call then fails, or runs again once it is known.
  if (ancestor === undefined) return;
  const isControl = first === controlDirectory && !(second === ledgerDirectory && third !== undefined);
  if (node === root || isControl) refuse('ACCES');
}
