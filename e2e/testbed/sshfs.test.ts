import { execFile } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { connect } from 'node:net';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';
import { createScratchFolder } from '#testing/scratch-folder.ts';
import { lacks } from './lacks.ts';
import { startSftpServer, startSshServer } from './sshfs.ts';

const run = promisify(execFile);

const [init, version] = [1, 2];

describe.skipIf(lacks('sshfs'))('the SFTP server for sshfs', () => {
  test('starts a process for each connection that speaks SFTP', async () => {
    await using server = await startSftpServer();
    for (let i = 0; i < 2; i++) {
      const socket = connect(server.port, server.host);
      // The length, the message type and version 3.
      socket.write(Buffer.from([0, 0, 0, 5, init, 0, 0, 0, 3]));
      const [answer] = (await once(socket, 'data')) as [Buffer];
      expect([...answer.subarray(4, 9)]).toEqual([version, 0, 0, 0, 3]);
      socket.destroy();
    }
  });

  test.skipIf(lacks('root'))('can be started with ssh in front of it', async () => {
    using scratch = createScratchFolder();
    // sshd requires this folder. The test's server has a folder of its own; a machine that runs sshd has it anyway.
    const hadFolder = existsSync('/run/sshd');
    await using server = await startSshServer(scratch.folder, async (file, args) => (await run(file, args)).stdout);
    const options = server.options.map((option) => `-o${option}`);
    const { stdout } = await run('ssh', [...options, server.host, 'echo', 'hello'], { timeout: 20_000 });
    expect(stdout).toBe('hello\n');
    expect(existsSync('/run/sshd')).toBe(hadFolder);
  });
});
