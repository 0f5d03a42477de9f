import type { CommandNode } from './command-tree.ts';
import { argumentPositions, completionSpec, optionsWithValue, wordLoop } from './completion-bash.ts';

/** `name:what it does`, as _describe wants it, in single quotes. */
const entry = (name: string, about: string): string =>
  `'${`${name.replaceAll(':', '\\:')}:${about}`.replaceAll("'", "'\\''")}'`;

const optionEntries = (nodes: readonly CommandNode[]): string =>
  nodes.flatMap((node) => node.options.map((one) => entry(one.long, one.about))).join(' ');

export function zshScript(nodes: readonly CommandNode[]): string {
  const options = optionsWithValue(nodes);
  const groups = nodes.filter((node) => node.children.length > 0);
  return `#compdef stowage
# zsh completion for stowage; load it with: source <(stowage completion zsh)
_stowage() {
  local cur=\${words[CURRENT]} at='' position=0 option='' kind='' word next i
  local -a entries via
  for ((i = 2; i < CURRENT; i++)); do
    word=\${words[i]}
${wordLoop(nodes)}
  done
  if [[ -n $option ]]; then
    case $option in
${[...options].map(([name, kind]) => `      '${name}') kind=${completionSpec(kind)} ;;`).join('\n')}
    esac
  elif [[ $cur == -* ]]; then
    entries=(${optionEntries(nodes.filter((node) => node.path === ''))})
    case $at in
${nodes
  .filter((node) => node.path !== '' && node.options.length > 0)
  .map((node) => `      '${node.path}') entries+=(${optionEntries([node])}) ;;`)
  .join('\n')}
    esac
  else
    case $at:$position in
${groups.map((node) => `      '${node.path}:0') entries=(${node.children.map((child) => entry(child.name, child.about)).join(' ')}) ;;`).join('\n')}
${nodes
  .filter((node) => node.children.length === 0)
  .flatMap(argumentPositions)
  .map(({ at, kind }) => `      ${at}) kind=${completionSpec(kind)} ;;`)
  .join('\n')}
    esac
  fi
  if (( \${#entries} )); then _describe 'stowage' entries; return; fi
  case $kind in
    'words '*) compadd -- \${=kind#words } ;;
    'ask '*) compadd -- \${(f)"$(stowage --timeout 2s __complete \${kind#ask } $via 2>/dev/null)"} ;;
    files) _files ;;
  esac
}
if [[ \${funcstack[1]} == _stowage ]]; then _stowage "$@"; else compdef _stowage stowage; fi`;
}
