import {
  PluginCapability_VolumeExpansion_Type as Expansion,
  type Identity,
  PluginCapability_Service_Type as Service,
} from '#wire/csi/generated/csi.ts';
import type { Handlers } from '#wire/csi/grpc.ts';
import type { DriverContext } from './driver-context.ts';

const service = (type: (typeof Service)[keyof typeof Service]) => ({
  type: { case: 'service' as const, value: { type } },
});

export const identityOf = ({ driver, version }: DriverContext): Handlers<typeof Identity> => ({
  getPluginInfo: async () => ({ name: driver.name, vendorVersion: version }),
  getPluginCapabilities: async () => ({
    capabilities: [
      service(Service.CONTROLLER_SERVICE),
      ...(driver.topology === 'node' ? [service(Service.VOLUME_ACCESSIBILITY_CONSTRAINTS)] : []),
      { type: { case: 'volumeExpansion', value: { type: Expansion.ONLINE } } },
    ],
  }),
  // A store that is down shows in the conditions of its volumes. The driver itself is ready as soon as it answers.
  probe: async () => ({ ready: true }),
});
