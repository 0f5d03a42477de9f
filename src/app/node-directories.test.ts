import { describe, expect, test } from 'vitest';
import { mountTable, parseMountinfo } from '#clients/mounter/mountinfo.ts';
import { refuseContainerDirectory } from './node-directories.ts';

/** The mount table of an agent's container on a node whose root is an overlay: the root, folders of the node, an emptyDir, a token. */
const table = mountTable(
  parseMountinfo(`
901 880 0:120 / / ro,relatime master:1 - overlay overlay ro,lowerdir=/a,upperdir=/b,workdir=/c
902 901 8:1 /var/lib/stowage /var/lib/stowage rw shared:7 - ext4 /dev/sda1 rw
903 901 0:33 /srv /srv rw master:1 - overlay overlay rw,lowerdir=/d,upperdir=/e,workdir=/f
904 903 8:17 / /srv/disk rw master:9 - xfs /dev/sdb1 rw
905 901 8:1 /var/lib/kubelet/pods/4bc/volumes/kubernetes.io~empty-dir/tmp /tmp rw - ext4 /dev/sda1 rw
`),
);

const refuse = async (root: string): Promise<void> =>
  await refuseContainerDirectory(async () => table)({ name: 'fast', root });

describe('local stores of an agent', () => {
  test('may be in folders of its node, on any file system', async () => {
    for (const root of ['/var/lib/stowage/stores/local', '/srv/fast', '/srv/disk/volumes'])
      await expect(refuse(root)).resolves.toBeUndefined();
  });

  test('must not be in its container, which is deleted with the pod, whether the directory exists or not', async () => {
    for (const root of ['/tmp', '/tmp/volumes', '/mnt/fast', '/srv-2', '/'])
      await expect(refuse(root)).rejects.toMatchObject({
        code: 'invalid',
        reason: 'store-not-on-node',
        message: `the store's directory ${root} is not on the node, but in the container of its agent`,
        action: expect.stringContaining(`add ${root} to the chart value agent.hostPaths`),
      });
  });
});
