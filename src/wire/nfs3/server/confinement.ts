import type { Caller } from '../../rpc/server.ts';
import { maxDepth } from './exported-tree.ts';
import type { Node } from './nodes.ts';
import { refuse } from './refusal.ts';

/** The control folder of a store. A data path keeps the ledger of its volume there, in `.stowage/quota/<volume id>`, and needs nothing else in it. */
const control = '.stowage';
const ledgers = 'quota';

/** By the common names of certificates. A caller whose certificate has no name is confined as well, where some are. */
export function createIsConfined(names: readonly string[]): (caller: Caller) => boolean {
  if (names.length === 0) return () => false;
  return ({ certificate }) => certificate === undefined || names.includes(certificate);
}

/**
 * A confined caller uses the directories whose handles it was given, and what lies in them. Handles cannot be made up, so it is enough to
 * refuse the ways to others: the exported directory itself, which leads to every volume, and the control folder. LOOKUP, READDIRPLUS and MNT
 * give it no handles of directories above.
 */
export function checkReach(node: Node, root: Node): void {
  let [first, second, third]: (string | undefined)[] = [];
  let at: Node | undefined = node;
  for (let depth = 0; at !== undefined && at !== root; at = at.parent) {
    if (depth++ > maxDepth) refuse('ACCES');
    [first, second, third] = [at.name, first, second];
  }
  // Not found yet, as after a restart: the call fails or is repeated when it is.
  if (at === undefined) return;
  const isControl = first === control && !(second === ledgers && third !== undefined);
  if (node === root || isControl) refuse('ACCES');
}
