import type { CommandNode, CompletionKind } from './command-tree.ts';
import { optionsWithValue } from './completion-bash.ts';

const anything: CompletionKind = { kind: 'anything' };

/** How to complete the last of these words. The shells' own scripts give the same results. */
export function completionFor(nodes: readonly CommandNode[], words: readonly string[]): CompletionKind {
  const options = optionsWithValue(nodes);
  const byPath = new Map(nodes.flatMap((node) => [node.path, ...node.aliases].map((path) => [path, node] as const)));
  let at = byPath.get('');
  let position = 0;
  let option: string | undefined;
  for (const word of words.slice(0, -1)) {
    if (option !== undefined) option = undefined;
    else if (options.has(word)) option = word;
    else if (!word.startsWith('-')) {
      const next = byPath.get([at?.path ?? '', word].filter((part) => part !== '').join('/'));
      if (next === undefined) position++;
      else at = next;
    }
  }
  if (option !== undefined) return options.get(option) ?? anything;
  const top = byPath.get('')?.options ?? [];
  if (words.at(-1)?.startsWith('-') === true)
    return { kind: 'words', words: [...new Set([...(at?.options ?? []), ...top].map(({ long }) => long))] };
  if (at === undefined) return anything;
  if (at.children.length > 0) return { kind: 'words', words: at.children.map(({ name }) => name) };
  const last = at.arguments.length - 1;
  return at.arguments[at.repeats ? Math.min(position, last) : position] ?? anything;
}
