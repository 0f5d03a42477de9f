import type { Route } from '#front/rest/route.ts';
import { mountRoutes } from '#front/rest/routes/mounts.ts';
import { serverRoutes } from '#front/rest/routes/server.ts';
import { storeRoutes } from '#front/rest/routes/stores.ts';
import { volumeListRoutes } from '#front/rest/routes/volume-list.ts';
import { volumeRoutes } from '#front/rest/routes/volumes.ts';

const nothing = async (): Promise<never> => {
  throw new Error('nobody is asked here');
};
const around = { status: nothing, doctor: nothing, dataPaths: { list: nothing, upgrade: nothing }, resultOf: nothing };

/** The routes of the REST API, for inspection. */
export const allRoutes: readonly Route[] = [
  ...volumeListRoutes,
  ...volumeRoutes,
  ...mountRoutes,
  ...storeRoutes,
  ...serverRoutes(around),
];
