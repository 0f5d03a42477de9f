import { execFile } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { onTestFinished } from 'vitest';
import { Controller, VolumeCapability_AccessMode_Mode as Mode, Node } from '#wire/csi/generated/csi.ts';
import { mounted } from './csi.ts';
import type { GrpcClient } from './grpc-client.ts';

const run = promisify(execFile);
const { method } = Node;

/**
 * Makes the kubelet's calls for pods with an fsGroup, to a driver that applies fsGroup itself, and runs scripts as
 * those pods.
 */
export interface PodsOfGroups {
  readonly at: (name: string) => string;
  stage(group: number): Promise<unknown>;
  publish(name: string, group: number, mode?: Mode): Promise<unknown>;
  unpublish(name: string): Promise<unknown>;
  /**
   * The groups of the volume's root, of a folder `d` in it and of a file in that folder, one per line, as a pod sees
   * them.
   */
  groupsIn(name: string, group: number): Promise<string>;
}

/** Runs a script as a process of a pod with that fsGroup. */
export const asGroup = async (uid: number, group: number, script: string, at: string): Promise<string> => {
  const user = ['--reuid', `${uid}`, '--regid', `${uid}`, '--groups', `${group}`];
  return (await run('setpriv', [...user, 'sh', '-ec', `cd "$1"; ${script}`, 'sh', at])).stdout.trim();
};

/** The result of `groupsIn` when everything belongs to that group. */
export const everythingOwnedBy = (group: number): string => `${group}\n${group}\n${group}`;

/** Creates the volume `pvc-1` and publishes it for pods `pod` and `other` below a folder, until the end of the test. */
export async function podsOfGroups(file: GrpcClient, folder: string): Promise<PodsOfGroups> {
  const at = (name: string): string => join(folder, name);
  mkdirSync(at('stage'));
  const volumeCapabilities = [mounted('MULTI_NODE_MULTI_WRITER')];
  const { volume } = await file.call(Controller.method.createVolume, { name: 'pvc-1', volumeCapabilities });
  const volumeId = volume?.volumeId ?? '';
  const staged = { volumeId, stagingTargetPath: at('stage') };
  const ofGroup = (group: number, mode: Mode = Mode.MULTI_NODE_MULTI_WRITER) => ({
    accessType: { case: 'mount' as const, value: { volumeMountGroup: String(group) } },
    accessMode: { mode },
  });
  const unpublish = (name: string) => file.call(method.nodeUnpublishVolume, { volumeId, targetPath: at(name) });
  onTestFinished(async () => {
    for (const name of ['pod', 'other']) await unpublish(name).catch(() => undefined);
    await file.call(method.nodeUnstageVolume, staged).catch(() => undefined);
  });
  return {
    at,
    unpublish,
    stage: (group) => file.call(method.nodeStageVolume, { ...staged, volumeCapability: ofGroup(group) }),
    publish: (name, group, mode) => {
      const volumeCapability = ofGroup(group, mode);
      return file.call(method.nodePublishVolume, { ...staged, targetPath: at(name), volumeCapability });
    },
    groupsIn: (name, group) => asGroup(1001, group, 'stat -c %g . d d/file', at(name)),
  };
}
