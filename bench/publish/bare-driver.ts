import { once } from 'node:events';
import { join } from 'node:path';
import { systemClock } from '#base/clock.ts';
import { Node } from '#wire/csi/generated/csi.ts';
import { createMethods } from '#wire/csi/grpc.ts';
import { createGrpcServer } from '#wire/csi/server.ts';
import { createBareMounts } from './bare.ts';

// A CSI driver that makes mounts and nothing else: `node bare-driver.ts SOCKET SOURCES OWN IDLE`. Volumes are folders in SOURCES.
// The driver at the socket IDLE makes no mounts and only answers.

const [socket = '', sources = '', own = '', idle = ''] = process.argv.slice(2);
const methods = createMethods(Node, {
  nodeStageVolume: async ({ volumeId, stagingTargetPath }) => {
    createBareMounts.stage(join(sources, volumeId), join(own, volumeId), join(stagingTargetPath, 'volume'));
    return {};
  },
  nodePublishVolume: async ({ volumeId, targetPath }) => {
    createBareMounts.publish(join(own, volumeId), targetPath);
    return {};
  },
  nodeUnpublishVolume: async ({ targetPath }) => {
    createBareMounts.takeDown(targetPath);
    return {};
  },
  nodeUnstageVolume: async ({ volumeId, stagingTargetPath }) => {
    createBareMounts.takeDown(join(stagingTargetPath, 'volume'), join(own, volumeId));
    return {};
  },
});
const nothing = async () => ({});
const answers = createMethods(Node, {
  nodeStageVolume: nothing,
  nodePublishVolume: nothing,
  nodeUnpublishVolume: nothing,
  nodeUnstageVolume: nothing,
});
const statusOf = (thrown: unknown) => ({ code: 13, message: String(thrown) });
const clock = systemClock();
for (const [path, served] of [
  [socket, methods],
  [idle, answers],
] as const) {
  const { server } = createGrpcServer({ methods: served, clock, statusOf });
  server.listen(path);
  await once(server, 'listening');
}
console.log('ready');
