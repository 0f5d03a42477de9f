import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { globSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { type Component, missingPrograms, onPath, type Run, testbedCommand } from './component.ts';
import { loopbackAddress } from './daemon.ts';
import { slaveMounts } from './mount-namespace.ts';

const sftpServerGlob = '/usr/{lib,libexec}{,/openssh,/ssh}/sftp-server';
const sftpServerPath = (): string | undefined => globSync(sftpServerGlob)[0];

/** Mounts files of another host without NFS. Only benchmarks need it, to compare Stowage's mounts with it. */
export const sshfs: Component = {
  what: 'sshfs, and an SFTP server for it',
  probe: () =>
    missingPrograms('sshfs', 'setpriv', 'ssh', 'sshd', 'ssh-keygen') ??
    (sftpServerPath() === undefined ? `not found: ${sftpServerGlob}` : undefined),
  command: testbedCommand,
  packages: () => ['sshfs', 'openssh-client', 'openssh-server', 'openssh-sftp-server'],
};

export interface SftpServer extends AsyncDisposable {
  readonly host: string;
  readonly port: number;
  /** Options for sshfs to connect. */
  readonly options: readonly string[];
}

/** Starts an SFTP server without ssh, and so without encryption, for sshfs with `directport`. */
export async function startSftpServer(): Promise<SftpServer> {
  const server = await spawnPerConnection([requireSftpServer()]);
  return { ...server, options: [`directport=${server.port}`] };
}

// sshd requires a folder that only its service creates. The tmpfs is not visible outside.
const mountRunScript = 'mount -t tmpfs -o mode=0755 stowage-run /run && mkdir /run/sshd && exec "$@"';

/** Starts an SFTP server over ssh, as users run it. Keys and settings are in the folder. Users log in as root. */
export async function startSshServer(folder: string, run: Run): Promise<SftpServer> {
  const [hostKey, ownKey, settings] = [join(folder, 'host'), join(folder, 'own'), join(folder, 'sshd_config')];
  for (const file of [hostKey, ownKey]) await run('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-f', file]);
  const lines = [
    `HostKey ${hostKey}`,
    `AuthorizedKeysFile ${ownKey}.pub`,
    `Subsystem sftp ${requireSftpServer()}`,
    'StrictModes no',
    'UsePAM no',
    'PasswordAuthentication no',
    'PermitRootLogin prohibit-password',
    'PidFile none',
  ];
  writeFileSync(settings, `${lines.join('\n')}\n`);
  const sshd = [onPath('sshd') ?? 'sshd', '-i', '-e', '-f', settings];
  const server = await spawnPerConnection(['unshare', ...slaveMounts, 'sh', '-c', mountRunScript, 'sh', ...sshd]);
  const anyHost = ['StrictHostKeyChecking=no', 'UserKnownHostsFile=/dev/null', 'LogLevel=ERROR'];
  return { ...server, options: [`port=${server.port}`, `IdentityFile=${ownKey}`, 'IdentitiesOnly=yes', ...anyHost] };
}

function requireSftpServer(): string {
  const file = sftpServerPath();
  if (file === undefined) throw new Error(`not found: ${sftpServerGlob}. Get it: ${testbedCommand}`);
  return file;
}

/** Starts a process for each connection. */
async function spawnPerConnection([file = '', ...args]: readonly string[]): Promise<Omit<SftpServer, 'options'>> {
  const host = loopbackAddress();
  const children = new Set<ChildProcess>();
  // This process reads nothing, because the first bytes belong to the other process.
  const server = createServer({ pauseOnConnect: true }, (socket) => {
    socket.setNoDelay(true);
    const child = spawn(file, args, { stdio: [socket, socket, 'ignore'] });
    children.add(child);
    child.once('error', () => children.delete(child)).once('exit', () => children.delete(child));
    // The other process has its own descriptor by now.
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
