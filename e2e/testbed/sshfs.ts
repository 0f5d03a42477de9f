import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { globSync } from 'node:fs';
import { createServer } from 'node:net';
import { byTestbed, type Component, missingPrograms } from './component.ts';
import { loopbackAddress } from './daemon.ts';

const places = '/usr/{lib,libexec}{,/openssh,/ssh}/sftp-server';
const program = (): string | undefined => globSync(places)[0];

/** Files of another host without an NFS client: what people use instead of our mounts. Only benchmarks need it. */
export const sshfs: Component = {
  what: 'sshfs, and the server that it talks to',
  probe: () => missingPrograms('sshfs', 'setpriv') ?? (program() === undefined ? `not found: ${places}` : undefined),
  command: byTestbed,
  packages: () => ['sshfs', 'openssh-sftp-server'],
};

export interface SftpServer extends AsyncDisposable {
  readonly host: string;
  readonly port: number;
}

/** Without ssh, so without encryption: for sshfs with `directport`. Each connection is given to a process of its own. */
export async function startSftpServer(): Promise<SftpServer> {
  const file = program();
  if (file === undefined) throw new Error(`not found: ${places}. Get it: ${byTestbed}`);
  const host = loopbackAddress();
  const children = new Set<ChildProcess>();
  // Nothing is read here: the first bytes are the other process's.
  const server = createServer({ pauseOnConnect: true }, (socket) => {
    socket.setNoDelay(true);
    const child = spawn(file, [], { stdio: [socket, socket, 'ignore'] });
    children.add(child);
    child.once('error', () => children.delete(child)).once('exit', () => children.delete(child));
    // It has a descriptor of its own by now.
    socket.destroy();
  });
  server.listen(0, host);
  await once(server, 'listening');
  return {
    host,
    port: (server.address() as { readonly port: number }).port,
    [Symbol.asyncDispose]: async () => {
      for (const child of children) child.kill('SIGKILL');
      await server[Symbol.asyncDispose]();
    },
  };
}
