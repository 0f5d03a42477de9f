import { createSocket } from 'node:dgram';
import { readFileSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import process from 'node:process';
import { startDaemon } from '#testbed/daemon.ts';
import type { Cluster } from '#testbed/kubernetes/cluster.ts';
import { addresses } from '#testbed/kubernetes/network.ts';

/** A DNS server for the names of services. It knows only the names that the test sets. */
export interface ClusterDns extends AsyncDisposable {
  /** Replaces all names and their addresses. */
  setNames(names: Readonly<Record<string, string>>): Promise<void>;
}

/** The kubelet arguments of a cluster that uses this DNS server. */
export const dnsArgs = [`--cluster-dns=${addresses.controlPlane}`, '--cluster-domain=cluster.local'] as const;

export async function startDns(cluster: Cluster, signal: AbortSignal): Promise<ClusterDns> {
  const folder = join(cluster.folder, 'dns');
  await mkdir(folder);
  const names = join(folder, 'names.json');
  await writeFile(names, '{}');
  const ownCommand = [process.execPath, '--disable-warning=ExperimentalWarning', import.meta.filename];
  const [first, ...rest] = [...cluster.network.inside, ...ownCommand, names] as const;
  const daemon = await startDaemon({
    command: [first, ...rest],
    logFile: join(folder, 'log'),
    signal,
    isReady: (log) => log.includes('answers'),
  });
  return {
    setNames: (entries) => writeFile(names, JSON.stringify(entries)),
    [Symbol.asyncDispose]: () => daemon.kill(),
  };
}

const [typeA, headBytes, noSuchName] = [1, 12, 3];

/** The name in the question section, and the offset of the section's end. */
function nameIn(query: Buffer): { readonly name: string; readonly end: number } {
  const labels: string[] = [];
  let offset = headBytes;
  for (let length = query[offset] ?? 0; length > 0; length = query[offset] ?? 0) {
    labels.push(query.toString('latin1', offset + 1, offset + 1 + length));
    offset += 1 + length;
  }
  return { name: labels.join('.').toLowerCase(), end: offset + 5 };
}

/** Answers A queries only. For other record types of a known name, returns no records. */
function answer(query: Buffer, names: Readonly<Record<string, string>>): Buffer {
  const { name, end } = nameIn(query);
  const address = names[name];
  const isFound = address !== undefined && query.readUInt16BE(end - 4) === typeA;
  const head = Buffer.from(query.subarray(0, headBytes));
  head.writeUInt16BE(0x8180 | (address === undefined ? noSuchName : 0), 2);
  head.writeUInt16BE(isFound ? 1 : 0, 6);
  head.writeUInt32BE(0, 8);
  const found = isFound ? [0xc0, headBytes, 0, typeA, 0, 1, 0, 0, 0, 5, 0, 4, ...address.split('.').map(Number)] : [];
  return Buffer.concat([head, query.subarray(headBytes, end), Buffer.from(found)]);
}

if (process.argv[1] === import.meta.filename) {
  const [, , file = ''] = process.argv;
  const socket = createSocket('udp4');
  socket.on('message', (query, { port, address }) => {
    socket.send(answer(query, JSON.parse(readFileSync(file, 'utf8'))), port, address);
  });
  socket.bind(53, addresses.controlPlane, () => process.stdout.write('it answers\n'));
}
