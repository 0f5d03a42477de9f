import type { CommandNode, CompletionKind } from './command-tree.ts';
import { connectionOptions, optionsWithValue } from './completion-bash.ts';

const quote = (text: string): string => `'${text.replaceAll('\\', '\\\\').replaceAll("'", "\\'")}'`;

/** fish: -f no files, -F files, -x an argument and no files, -r an argument. */
function argumentFlags(kind: CompletionKind): string {
  switch (kind.kind) {
    case 'words':
      return ` -x -a ${quote(kind.words.join(' '))}`;
    case 'ask':
      return ` -x -a ${quote(`(__stowage_ask ${kind.what})`)}`;
    case 'files':
      return ' -r -F';
    case 'anything':
      return ' -x';
    default:
      return kind satisfies never;
  }
}

function completionLines(node: CommandNode): string[] {
  const at = `__stowage_at ${quote(node.path)}`;
  const children = node.children.map(
    (child) => `complete -c stowage -n ${quote(`${at} 0`)} -a ${quote(child.name)} -d ${quote(child.about)}`,
  );
  const last = node.arguments.length - 1;
  const places = node.arguments.flatMap((kind, i) => {
    const place = node.repeats && i === last ? '' : ` ${i}`;
    if (kind.kind === 'anything') return [];
    const what = kind.kind === 'files' ? ' -F' : argumentFlags(kind).replace(' -x', ' -f');
    return [`complete -c stowage -n ${quote(`${at}${place}`)}${what}`];
  });
  const options = node.options.map(({ long, short, about, takes: kind }) => {
    const name = `${short === undefined ? '' : ` -s ${short.slice(1)}`} -l ${long.slice(2)}`;
    const where = node.path === '' ? '' : ` -n ${quote(at)}`;
    return `complete -c stowage${where}${name} -d ${quote(about)}${kind === undefined ? '' : argumentFlags(kind)}`;
  });
  return [...children, ...places, ...options];
}

export function fishScript(nodes: readonly CommandNode[]): string {
  const paths = nodes.flatMap((node) => [node.path, ...node.aliases]).filter((path) => path !== '');
  const aliases = nodes.flatMap((node) =>
    node.aliases.map((alias) => `        case ${quote(alias)}; set at ${quote(node.path)}`),
  );
  return `# fish completion for stowage; save it as ~/.config/fish/completions/stowage.fish
function __stowage_at --argument-names want place
  set -l at ''
  set -l position 0
  set -l option ''
  for word in (commandline -opc)[2..-1]
    if test -n "$option"
      set option ''
      continue
    end
    switch $word
      case ${[...optionsWithValue(nodes).keys()].map(quote).join(' ')}
        set option $word
      case '-*'
      case '*'
        set -l next $word
        test -n "$at"; and set next "$at/$word"
        if contains -- $next ${paths.map(quote).join(' ')}
          set at $next
        else
          set position (math $position + 1)
        end
        switch $at
${aliases.join('\n')}
        end
    end
  end
  test "$at" = "$want"; or return 1
  test -z "$place"; or test "$place" = "$position"
end
function __stowage_ask --argument-names what
  set -l via
  set -l option ''
  for word in (commandline -opc)[2..-1]
    if test -n "$option"
      set -a via $option $word
      set option ''
      continue
    end
    switch $word
      case ${connectionOptions.map(quote).join(' ')}
        set option $word
      case ${connectionOptions.map((option) => quote(`${option}=*`)).join(' ')}
        set -a via $word
    end
  end
  stowage --timeout 2s __complete $what $via 2>/dev/null
end
complete -c stowage -f
${nodes.flatMap(completionLines).join('\n')}`;
}
