import { once } from 'node:events';
import { connect } from 'node:net';
import { describe, expect, test } from 'vitest';
import { needs } from './needs.ts';
import { startSftpServer } from './sshfs.ts';

const [init, version] = [1, 2];

describe.skipIf(needs('sshfs'))('the server for sshfs', () => {
  test('gives each connection to a process that speaks its protocol', async () => {
    await using server = await startSftpServer();
    for (let i = 0; i < 2; i++) {
      const socket = connect(server.port, server.host);
      // Length, kind, version 3.
      socket.write(Buffer.from([0, 0, 0, 5, init, 0, 0, 0, 3]));
      const [answer] = (await once(socket, 'data')) as [Buffer];
      expect([...answer.subarray(4, 9)]).toEqual([version, 0, 0, 0, 3]);
      socket.destroy();
    }
  });
});
