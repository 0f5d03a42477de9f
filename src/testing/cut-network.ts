import { execFile } from 'node:child_process';
import { dirname } from 'node:path';
import { promisify } from 'node:util';
import { onPath } from '#testbed/component.ts';
import type { Source } from './keeper-mounts.ts';
import type { FarNetwork } from './network-namespaces.ts';

const run = promisify(execFile);
const repository = dirname(dirname(import.meta.dirname));

/** The command prefix that runs a command in the client's network namespace. */
export const enterNamespace = ({ name }: Pick<FarNetwork, 'name'>): readonly [string, ...string[]] =>
  [onPath('nsenter') ?? 'nsenter', `--net=/run/netns/${name}`, '--'] as [string, ...string[]];

async function runInNetwork(far: FarNetwork, ...command: readonly string[]): Promise<string> {
  const [file, ...args] = [...enterNamespace(far), ...command] as const;
  return (await run(file as string, args, { cwd: repository, timeout: 20_000 })).stdout;
}

/** The root of the remote server's export, as the client looks it up. */
export async function farSource(far: FarNetwork): Promise<Source> {
  const script = `
    import { openExport } from '#testing/nfs-export.ts';
    const [host, port] = process.argv.slice(1);
    using found = await openExport({ host, nfsPort: Number(port), mountPort: Number(port) }, '/export');
    process.stdout.write(Buffer.from(found.root).toString('base64'));`;
  const node = [process.execPath, '--input-type=module', '--disable-warning=ExperimentalWarning', '--eval', script];
  const root = await runInNetwork(far, ...node, far.host, String(far.port));
  return { host: far.host, port: far.port, root };
}

/** lose: the firewall drops packets. refuse: it answers them with a TCP reset. */
export type PacketFault = 'lose' | 'refuse';
const targets = { lose: ['DROP'], refuse: ['REJECT', '--reject-with', 'tcp-reset'] } as const;

/** Adds firewall rules in the client's namespace until they are disposed of, for the given client ports or for all. */
export async function cutNetwork(
  far: FarNetwork,
  how: PacketFault,
  ports: readonly number[] = [],
): Promise<AsyncDisposable> {
  const iptables = onPath('iptables') ?? 'iptables';
  const rules = (ports.length === 0 ? [undefined] : ports).flatMap((port) =>
    (
      [
        ['OUTPUT', '--sport'],
        ['INPUT', '--dport'],
      ] as const
    ).map(([chain, which]) => [
      chain,
      '-p',
      'tcp',
      ...(port === undefined ? [] : [which, String(port)]),
      '-j',
      ...targets[how],
    ]),
  );
  for (const rule of rules) await runInNetwork(far, iptables, '--wait', '-A', ...rule);
  return {
    [Symbol.asyncDispose]: async () => {
      for (const rule of rules) await runInNetwork(far, iptables, '--wait', '-D', ...rule);
    },
  };
}

/** The local ports of the client's open connections. */
export async function openPorts(far: FarNetwork): Promise<readonly number[]> {
  const table = await runInNetwork(far, 'cat', '/proc/net/tcp');
  const established = '01';
  return table
    .split('\n')
    .slice(1)
    .map((line) => line.trim().split(/\s+/))
    .filter((fields) => fields[3] === established)
    .map((fields) => Number.parseInt(fields[1]?.split(':')[1] ?? '', 16));
}
