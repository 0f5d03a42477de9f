import type { Log } from '#base/log.ts';
import type { CsiDriver } from '#core/csi-drivers.ts';
import type { Registration } from '#wire/csi/generated/registration.ts';
import type { Handlers } from '#wire/csi/grpc.ts';

/** The kubelet's plugin registration: it calls this on a socket in its plugin registry before it calls the driver. */
export const registrationOf = ({ name }: CsiDriver, endpoint: string, log: Log): Handlers<typeof Registration> => ({
  getInfo: async () => ({
    type: 'CSIPlugin',
    name,
    endpoint,
    // The CSI version. The kubelet rejects a major version other than 1.
    supportedVersions: ['1.0.0'],
  }),
  notifyRegistrationStatus: async ({ pluginRegistered, error }) => {
    if (pluginRegistered) log.info('the kubelet registered the driver', { driver: name });
    else log.error('the kubelet rejected the driver', { driver: name, why: error });
    return {};
  },
});
