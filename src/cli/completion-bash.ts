import type { CommandNode, CompletionKind } from './command-tree.ts';

/** The options that select the server. The scripts pass them on when they ask the server for names. */
export const connectionOptions = ['--socket', '--url', '--token-file'];

/** `a|b|c`, as patterns of a case. */
const casePattern = (patterns: readonly string[]): string => patterns.map((pattern) => `'${pattern}'`).join('|');

/** For bash and zsh: how to complete, as `words …`, `ask …`, `files` or an empty string. */
export function completionSpec(kind: CompletionKind): string {
  switch (kind.kind) {
    case 'words':
      return `'words ${kind.words.join(' ')}'`;
    case 'ask':
      return `'ask ${kind.what}'`;
    case 'files':
      return `'files'`;
    case 'anything':
      return `''`;
    default:
      return kind satisfies never;
  }
}

/** Every option that takes a value, and how to complete it. An option means the same in every command. */
export function optionsWithValue(nodes: readonly CommandNode[]): Map<string, CompletionKind> {
  const options = new Map<string, CompletionKind>();
  for (const { long, short, takes } of nodes.flatMap((node) => node.options)) {
    if (takes === undefined) continue;
    options.set(long, takes);
    if (short !== undefined) options.set(short, takes);
  }
  return options;
}

/** One pattern for each argument position: `volume/show:0`, `volume/delete:*`. */
export function argumentPositions(node: CommandNode): { readonly at: string; readonly kind: CompletionKind }[] {
  if (node.children.length > 0) {
    return [{ at: `'${node.path}:0'`, kind: { kind: 'words', words: node.children.map((child) => child.name) } }];
  }
  return node.arguments.map((kind, i) => ({
    at: node.repeats && i === node.arguments.length - 1 ? `'${node.path}:'*` : `'${node.path}:${i}'`,
    kind,
  }));
}

/** Alias to path, so that `volume ls` completes like `volume list`. */
function aliasLines(nodes: readonly CommandNode[], indent: string): string[] {
  return nodes.flatMap((node) => node.aliases.map((alias) => `${indent}'${alias}') at='${node.path}' ;;`));
}

/** The loop over the words before the cursor, which finds the command and the option whose value comes next. */
export function wordLoop(nodes: readonly CommandNode[]): string {
  const paths = nodes.flatMap((node) => [node.path, ...node.aliases]).filter((path) => path !== '');
  return `    if [[ -n $option ]]; then
      case $option in ${casePattern(connectionOptions)}) via+=("$option" "$word") ;; esac
      option=''
      continue
    fi
    case $word in
      ${connectionOptions.map((option) => `'${option}='*`).join('|')}) via+=("$word") ;;
      ${casePattern([...optionsWithValue(nodes).keys()])}) option=$word ;;
      -*) ;;
      *)
        next=$at\${at:+/}$word
        case $next in
          ${casePattern(paths)}) at=$next ;;
          *) position=$((position + 1)) ;;
        esac
        case $at in
${aliasLines(nodes, '          ').join('\n')}
        esac ;;
    esac`;
}

const longOptions = (nodes: readonly CommandNode[]): string =>
  nodes.flatMap((node) => node.options.map((one) => one.long)).join(' ');

export function bashScript(nodes: readonly CommandNode[]): string {
  const options = optionsWithValue(nodes);
  return `# bash completion for stowage; load it with: source <(stowage completion bash)
_stowage() {
  local cur=\${COMP_WORDS[COMP_CWORD]} at='' position=0 option='' kind='' word next i
  local -a via=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=\${COMP_WORDS[i]}
${wordLoop(nodes)}
  done
  if [[ -n $option ]]; then
    case $option in
${[...options].map(([name, kind]) => `      '${name}') kind=${completionSpec(kind)} ;;`).join('\n')}
    esac
  elif [[ $cur == -* ]]; then
    kind='words ${longOptions(nodes.filter((node) => node.path === ''))}'
    case $at in
${nodes
  .filter((node) => node.path !== '' && node.options.length > 0)
  .map((node) => `      '${node.path}') kind+=' ${longOptions([node])}' ;;`)
  .join('\n')}
    esac
  else
    case $at:$position in
${nodes
  .flatMap(argumentPositions)
  .map(({ at, kind }) => `      ${at}) kind=${completionSpec(kind)} ;;`)
  .join('\n')}
    esac
  fi
  COMPREPLY=()
  case $kind in
    'words '*) for word in \${kind#words }; do [[ $word == "$cur"* ]] && COMPREPLY+=("$word"); done ;;
    'ask '*)
      while IFS= read -r word; do
        [[ $word == "$cur"* ]] && COMPREPLY+=("$word")
      done < <(stowage --timeout 2s __complete "\${kind#ask }" "\${via[@]}" 2>/dev/null)
      ;;
    files)
      compopt -o filenames 2>/dev/null
      while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -- "$cur")
      ;;
  esac
}
complete -F _stowage stowage`;
}
