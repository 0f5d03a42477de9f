import type { Log } from '#base/log.ts';
import type { CsiDriver } from '#core/csi-drivers.ts';
import type { Registration } from '#wire/csi/generated/registration.ts';
import type { Handlers } from '#wire/csi/grpc.ts';

/** What a kubelet asks on a socket in its folder of plugins, before it calls the driver at its own. */
export const registrationOf = ({ name }: CsiDriver, endpoint: string, log: Log): Handlers<typeof Registration> => ({
  getInfo: async () => ({
    type: 'CSIPlugin',
    name,
    endpoint,
    // Of CSI. Anything but major version 1 is refused.
    supportedVersions: ['1.0.0'],
  }),
  notifyRegistrationStatus: async ({ pluginRegistered, error }) => {
    if (pluginRegistered) log.info('the kubelet knows the driver', { driver: name });
    else log.error('the kubelet refuses the driver', { driver: name, why: error });
    return {};
  },
});
