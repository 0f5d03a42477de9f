import { chmodSync } from 'node:fs';
import { systemClock } from '#base/clock.ts';
import { acceptConnection, connectTo, listenAt, shutDown } from '#base/linux/descriptor-sockets.ts';
import { createConnection } from '#keeper/connection.ts';
import { createDescriptorCopies } from '#keeper/descriptor-copies.ts';

/** A successor that has received everything from the keeper at this socket, but does not listen there yet. */
export async function createSlowSuccessor(socket: string): Promise<Disposable> {
  using all = new DisposableStack();
  const clock = systemClock();
  const own = `${socket}.slow`;
  const listening = all.adopt(listenAt(own), shutDown);
  // Data paths run as another user.
  chmodSync(own, 0o666);
  const keeper = all.adopt(createConnection(connectTo(socket), clock), (line) => line.close());
  const { promise: yours, resolve, reject } = Promise.withResolvers<void>();
  keeper.handle({ accepts: ['yours'], message: () => resolve(), closed: (why) => reject(new Error(why)) });
  keeper.send({ kind: 'hello', role: 'keeper', pid: process.pid, version: 'test' });
  keeper.send({ kind: 'handover', path: own });
  const dataPath = all.adopt(createConnection((await acceptConnection(listening)) ?? -1, clock), (line) =>
    line.close(),
  );
  const copies = all.use(createDescriptorCopies());
  dataPath.handle({
    accepts: ['hello', 'everything', 'add', 'holding', 'letGo', 'ready', 'report'],
    message: (message, descriptors) => {
      const { kind } = message;
      if (kind === 'hello' || kind === 'ready' || kind === 'report') return;
      const before = copies.mounts.length;
      copies.take(message, descriptors);
      if (before === 0 && copies.mounts.length > 0) keeper.send({ kind: 'taking' });
    },
    closed: () => undefined,
  });
  await yours;
  return all.move();
}
