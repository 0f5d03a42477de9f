import type { Placement } from './placement.ts';

/** A CSI driver of ours. Attaching, topology and growth are properties of a driver, so its stores are those that agree in them. */
export interface CsiDriver {
  readonly name: string;
  /** File name of its socket, without `.sock`. */
  readonly socket: string;
  // As its CSIDriver object in the chart has them: scripts/manifests.test.ts compares the two.
  readonly attachRequired: boolean;
  readonly podInfoOnMount: boolean;
  readonly fsGroupPolicy: 'File';
  readonly storageCapacity: boolean;
  readonly volumeLifecycleModes: readonly ('Persistent' | 'Ephemeral')[];
  /** The driver applies fsGroup itself (VOLUME_MOUNT_GROUP). Otherwise the kubelet does. */
  readonly volumeMountGroup: boolean;
  /** `node`: a volume can be used on one node only, and says on which. */
  readonly topology: 'none' | 'node';
  /** Several nodes can use a volume at the same time. */
  readonly multiNode: boolean;
  /** A volume that grew must also be grown on the node that has it mounted. */
  readonly nodeExpansion: boolean;
  /** Default for StorageClasses that do not set it. A volume on one node has to wait until the node is known. */
  readonly volumeBindingMode: 'Immediate' | 'WaitForFirstConsumer';
}

export const fileDriver: CsiDriver = {
  name: 'file.stowage.dev',
  socket: 'file',
  attachRequired: false,
  podInfoOnMount: true,
  fsGroupPolicy: 'File',
  storageCapacity: false,
  volumeLifecycleModes: ['Persistent', 'Ephemeral'],
  volumeMountGroup: true,
  topology: 'none',
  multiNode: true,
  nodeExpansion: false,
  volumeBindingMode: 'Immediate',
};

export const localDriver: CsiDriver = {
  name: 'local.stowage.dev',
  socket: 'local',
  attachRequired: false,
  podInfoOnMount: true,
  fsGroupPolicy: 'File',
  storageCapacity: true,
  volumeLifecycleModes: ['Persistent', 'Ephemeral'],
  volumeMountGroup: false,
  topology: 'node',
  multiNode: false,
  nodeExpansion: true,
  volumeBindingMode: 'WaitForFirstConsumer',
};

export const drivers: readonly CsiDriver[] = [fileDriver, localDriver];

/** Which driver serves the stores of a placement. A placement without a row does not compile. */
const driverOf: Readonly<Record<Placement, CsiDriver>> = {
  node: localDriver,
  anywhere: fileDriver,
  'mount-worker': fileDriver,
};

/** Undefined, a store of an unknown kind: file.stowage.dev. */
export const driverFor = (placement: Placement | undefined): CsiDriver =>
  placement === undefined ? fileDriver : driverOf[placement];

/** Undefined: it is not one of ours. */
export const driverNamed = (name: string | undefined): CsiDriver | undefined =>
  drivers.find((driver) => driver.name === name);
